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
use crate::model::cgroup_name::{CgroupDriver, CgroupName, CgroupNameError};
use crate::model::cgroup_path::CgroupPath;
use crate::model::cpuset::CpuSet;
use crate::model::device_access::{AllocatedDevice, DeviceAccess};
use crate::model::numa::NumaMask;
use crate::model::pod::{Container, Pod, PodUid, QosClass, memory_in};
use crate::model::resources::CgroupResources;

/// What desired cgroups depend on beside pods. Changes only with the machine or the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct NodePlan {
    /// The cgroup of all pods.
    pub kubepods: CgroupName,
    /// Who says where it and what is below it is.
    pub driver: CgroupDriver,
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
    /// Containers that nobody places hold it too: they have lost CPUs that went and came back.
    pub of_containers: bool,
}

impl NodePlan {
    /// The cgroup of all pods on disk.
    pub fn kubepods_path(&self) -> CgroupPath {
        self.kubepods.at(self.driver)
    }

    /// The parents of pod cgroups: kubepods itself and the two QoS cgroups.
    pub fn qos_cgroups(&self) -> [CgroupPath; 3] {
        [
            QosClass::Guaranteed,
            QosClass::Burstable,
            QosClass::BestEffort,
        ]
        .map(|class| self.qos_path(class))
    }

    /// The cgroup of a QoS class: kubepods itself for Guaranteed.
    pub fn qos_path(&self, class: QosClass) -> CgroupPath {
        self.kubepods.qos(class).at(self.driver)
    }

    /// The cgroup of a pod; fails for a UID that makes no name of a cgroup.
    pub fn pod_path(&self, class: QosClass, uid: &PodUid) -> Result<CgroupPath, CgroupNameError> {
        Ok(self.kubepods.pod(class, uid)?.at(self.driver))
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
                self.kubepods_path(),
                with_node_limits(limits, &qos.kubepods),
            ),
            (self.qos_path(QosClass::Burstable), qos.burstable),
            (self.qos_path(QosClass::BestEffort), qos.besteffort),
        ]
        .into_iter()
        .map(|(path, resources)| self.ancestor(path, resources))
        .collect()
    }

    /// `pinning` is `Exclusive` if any container of the pod has CPUs of its own.
    pub fn pod_cgroup(
        &self,
        pod: &Pod,
        class: QosClass,
        pinning: CpuPinning,
        path: CgroupPath,
    ) -> DesiredCgroup {
        let pinning = self.pinning_for_quota(pinning);
        let resources = pod_resources(pod, class, &self.settings, pinning);
        let own = pod.resources.as_ref();
        let own_memory = own.and_then(|it| memory_in(&it.limits));
        DesiredCgroup {
            is_sum: own_memory.is_none(),
            ..self.ancestor(path, resources)
        }
    }

    pub fn container_cgroup(
        &self,
        pod: &Pod,
        class: QosClass,
        container: &Container,
        placement: &ContainerPlacement,
        path: CgroupPath,
    ) -> DesiredCgroup {
        let pinning = self.pinning_for_quota(placement.pinning);
        let placement = self.with_all_cpus(placement);
        let resources = CgroupResources {
            cpuset_cpus: placement.cpus,
            cpuset_mems: placement.mems,
            ..container_resources(pod, class, container, &self.settings, pinning)
        };
        self.cgroup(path, &resources, WeightMap::Quadratic)
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
        path: CgroupPath,
    ) -> DesiredCgroup {
        let placement = self.with_all_cpus(placement);
        self.cgroup(path, &placement.resources(), WeightMap::Quadratic)
    }

    /// See [`AncestorCpuset::of_containers`].
    fn with_all_cpus(&self, placement: &ContainerPlacement) -> ContainerPlacement {
        let all = self.ancestors.as_ref().filter(|it| it.of_containers);
        let cpus = placement.cpus.as_ref().or(all.map(|it| &it.cpus));
        ContainerPlacement {
            cpus: cpus.cloned(),
            pinning: placement.pinning,
            mems: placement.mems.or(all.map(|it| it.mems)),
        }
    }

    fn pinning_for_quota(&self, pinning: CpuPinning) -> CpuPinning {
        match self.exclusive_cpu_limits {
            CpuLimits::Ignored => pinning,
            CpuLimits::Enforced => CpuPinning::Shared,
        }
    }

    fn ancestor(&self, path: CgroupPath, mut resources: CgroupResources) -> DesiredCgroup {
        if let Some(all) = &self.ancestors {
            resources.cpuset_cpus = Some(all.cpus.clone());
            resources.cpuset_mems = Some(all.mems);
        }
        self.cgroup(path, &resources, WeightMap::Linear)
    }

    fn cgroup(
        &self,
        path: CgroupPath,
        resources: &CgroupResources,
        weights: WeightMap,
    ) -> DesiredCgroup {
        DesiredCgroup {
            path,
            files: files_for(resources, weights, &self.rules),
            is_sum: false,
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
