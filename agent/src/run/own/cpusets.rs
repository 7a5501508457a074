//! Where the containers run: the cpusets of their cgroups, and the starts that wait until others have
//! left the CPUs.
//!
//! Invariant: CPUs leave the cpusets of all others, in the kernel, before a container that has them
//! alone is started on them. That the shared pool grows again may come later.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Loop;
use super::pods::PodEntry;
use crate::decide::cpusets::{ContainerPlacement, holders};
use crate::decide::resource_settings::CpuPinning;
use crate::model::admission::Admission;
use crate::model::cgroup::{DesiredCgroup, Existence};
use crate::model::cgroup_path::CgroupPath;
use crate::model::container::ContainerAction;
use crate::model::cpuset::CpuSet;
use crate::model::numa::NumaMask;
use crate::model::pod::PodUid;

impl Loop {
    pub(super) fn placement_of(&self, pod: &PodUid, container: &str) -> ContainerPlacement {
        let placement = &self.placement;
        let nodes = placement.gives_memory_back;
        let nodes = nodes.or_else(|| self.nodes_after_loss(pod, container));
        ContainerPlacement::of(&placement.cpus, &placement.memory, pod, container)
            .or_memory_of(nodes)
    }

    /// Those of all pods, one file, for a container that goes on without memory of its own: what it had may be given to
    /// others. `None`: it is no such container.
    fn nodes_after_loss(&self, uid: &PodUid, container: &str) -> Option<NumaMask> {
        let entry = self.pods.get(uid)?;
        let is_in = entry.state.admission == Admission::Admitted;
        let managers = &self.placement.managers;
        match is_in && managers.lacks_memory(&entry.state.pod, container) {
            true => self.numa_nodes_of_pods(),
            false => None,
        }
    }

    /// The cpusets of the containers of a pod that run, and nothing else of them.
    pub(super) fn container_cpusets(&self, entry: &PodEntry) -> Vec<DesiredCgroup> {
        let running = entry.instances.iter().filter(|(_, it)| it.ended.is_none());
        running
            .map(|(container, instance)| {
                let placement = self.placement_of(entry.uid(), container);
                let path = instance.cgroup.clone();
                self.hands.plan.container_cpuset(&placement, path)
            })
            .filter(|it| !it.files.is_empty())
            .collect()
    }

    /// What can be done now of `actions` and of the starts held before. A start on CPUs that others
    /// are still on, by the kernel's word, is held; the cpusets of all are looked at again with the
    /// next pass. A held start whose pod goes meanwhile is over.
    pub(super) fn without_held(
        &mut self,
        actions: Vec<(PodUid, ContainerAction)>,
        now: Duration,
    ) -> Vec<(PodUid, ContainerAction)> {
        let mut all = std::mem::take(&mut self.held_starts);
        all.extend(actions);
        let mut ready = Vec::new();
        for (uid, action) in all {
            let ContainerAction::Start { container, .. } = &action else {
                ready.push((uid, action));
                continue;
            };
            let lack = self.lack_of(&uid, container, now);
            let is_lack = lack.is_some();
            let why = match self.ownership.has(&uid) {
                true => lack.or_else(|| self.why_held(&uid, container)),
                false => Some("waits until the record of its pod can be stored".to_owned()),
            };
            let Some(entry) = self.pods.get_mut(&uid) else {
                continue;
            };
            let is_going = entry.state.ending().is_some();
            let Some(instance) = entry.instances.get_mut(container) else {
                continue;
            };
            if !is_lack && let Some(lack) = &mut instance.lack {
                lack.until = None;
            }
            let before = std::mem::replace(&mut instance.held, why.clone());
            match (before, why) {
                (Some(why), _) if is_going => self.start_failed(&uid, container, why, now),
                (_, None) => ready.push((uid, action)),
                (before, Some(why)) => {
                    if before.is_none() {
                        self.told.start_held(&entry.pod_ref, container, &why);
                    }
                    self.placement.is_pool_moved |= !is_lack;
                    self.held_starts.push((uid, action));
                }
            }
        }
        ready
    }

    /// What the agent lacked for a start, until it is tried again.
    fn lack_of(&self, uid: &PodUid, container: &str, now: Duration) -> Option<String> {
        let lack = self
            .pods
            .get(uid)?
            .instances
            .get(container)?
            .lack
            .as_ref()?;
        lack.until
            .is_some_and(|it| now < it)
            .then(|| lack.why.clone())
    }

    /// `None`: the container has no CPUs of its own, or has them alone.
    fn why_held(&self, uid: &PodUid, container: &str) -> Option<String> {
        let placement = self.placement_of(uid, container);
        let (CpuPinning::Exclusive, Some(cpus)) = (placement.pinning, &placement.cpus) else {
            return None;
        };
        let (other, shared) = self.holders_of(cpus, uid, container).pop_first()?;
        Some(format!("waits until {other} has left CPUs {shared}"))
    }

    /// The CPUs that a container was given; none where it runs in the shared pool.
    fn given_to(&self, uid: &PodUid, container: &str) -> CpuSet {
        let placement = self.placement_of(uid, container);
        let is_given = placement.pinning == CpuPinning::Exclusive;
        placement.cpus.filter(|_| is_given).unwrap_or_default()
    }

    /// The cgroups of other containers that are on `cpus`, the container's own, as the kernel has it now: one file a
    /// container. Those of its pod share with it what it was given for both.
    fn holders_of(
        &self,
        cpus: &CpuSet,
        uid: &PodUid,
        container: &str,
    ) -> BTreeMap<CgroupPath, CpuSet> {
        let mut observed = BTreeMap::new();
        for (pod, entry) in &self.pods {
            for (name, instance) in &entry.instances {
                let is_sibling = pod == uid;
                if is_sibling && name == container {
                    continue;
                }
                let held = self.cpus_of(&instance.cgroup);
                let held = held.map(|held| match is_sibling {
                    true => held.difference(&self.given_to(pod, name)),
                    false => held,
                });
                observed.insert(instance.cgroup.clone(), held);
            }
        }
        holders(&observed, cpus)
    }

    /// `None`: not known; a cgroup that lacks its cpuset leaves its processes in another one.
    fn cpus_of(&self, path: &CgroupPath) -> Option<CpuSet> {
        let reader = &self.node.reader;
        let cpus = reader.cpus(path).and_then(|cpus| match cpus {
            Some(cpus) => Ok(Some(cpus)),
            None => {
                let existence = reader.existence(path)?;
                Ok((existence == Existence::Absent).then(CpuSet::new))
            }
        });
        cpus.unwrap_or_else(|error| {
            tracing::warn!(error = crate::observe::chain(&error), "read a cpuset");
            None
        })
    }
}
