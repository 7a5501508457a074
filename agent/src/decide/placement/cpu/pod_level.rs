//! CPUs of a pod as a whole, divided among its containers
//! (pkg/kubelet/cm/cpumanager/policy_static.go, v1.36: `AllocatePod`; feature gate
//! `PodLevelResourceManagers`, topology scope `pod`).

use std::collections::BTreeMap;

use super::demand::{exclusive_cpus, exclusive_cpus_of_pod};
use super::{CpuError, CpuManager, take};
use crate::config::Compat;
use crate::model::cpuset::CpuSet;
use crate::model::numa::Hint;
use crate::model::pod::{Container, Pod};

impl CpuManager {
    /// Gives a pod with pod-level resources its CPUs and divides them: exclusive ones to the
    /// containers that ask for them, what remains to all the others. Init containers go before the
    /// rest, so they get the same CPUs once more; sidecars keep theirs. A pod that holds its CPUs
    /// already keeps them.
    pub fn allocate_pod(&mut self, pod: &Pod, hint: Hint) -> Result<(), CpuError> {
        let n = exclusive_cpus_of_pod(pod, self.settings.manages_pod_level);
        if n == 0 || !pod.has_pod_level_resources() {
            return Ok(());
        }
        if self.settings.compat == Compat::Kubelet {
            self.check_shared(pod, n)?;
            self.check_cores_as_kubelet(n)?;
        }
        if self.state.pods.contains_key(&pod.uid) {
            return Ok(());
        }
        let before = self.state.clone();
        if self.settings.compat == Compat::Ballast {
            // By themselves, in books that were made from what runs.
            for container in pod.all_containers() {
                self.release(&pod.uid, &container.name);
            }
        }
        let done = self.allocate_new_pod(pod, n, hint);
        if done.is_err() && self.settings.compat == Compat::Ballast {
            // Kubelet keeps what it took.
            self.state = before;
        }
        done
    }

    fn allocate_new_pod(&mut self, pod: &Pod, n: usize, hint: Hint) -> Result<(), CpuError> {
        self.check_shared(pod, n)?;
        let cpus = self.choose(n, hint, &self.reusable(pod))?;
        self.state.shared_pool = self.state.shared_pool.difference(&cpus);
        self.state.pods.insert(pod.uid.clone(), cpus.clone());
        let containers = self.divide(pod, &cpus)?;
        self.state.containers.insert(pod.uid.clone(), containers);
        Ok(())
    }

    fn exclusive(&self, pod: &Pod, container: &Container) -> usize {
        exclusive_cpus(pod, container, self.settings.manages_pod_level)
    }

    /// Something must be left to the containers that share: to an init container by the sidecars
    /// before it, to the others by all exclusive sidecars and apps.
    pub(super) fn check_shared(&self, pod: &Pod, n: usize) -> Result<(), CpuError> {
        let (mut exclusive, mut is_shared) = (0_usize, false);
        for container in &pod.init_containers {
            let own = self.exclusive(pod, container);
            if container.is_sidecar {
                exclusive = exclusive.saturating_add(own);
                is_shared |= own == 0;
            } else if own == 0 && exclusive >= n {
                return Err(CpuError::EmptyPodInitPool);
            }
        }
        for container in &pod.containers {
            let own = self.exclusive(pod, container);
            exclusive = exclusive.saturating_add(own);
            is_shared |= own == 0;
        }
        if is_shared && exclusive >= n {
            return Err(CpuError::EmptyPodSharedPool);
        }
        Ok(())
    }

    fn divide(&self, pod: &Pod, cpus: &CpuSet) -> Result<BTreeMap<String, CpuSet>, CpuError> {
        let settings = &self.settings;
        let take = |from: &CpuSet, n| take(&settings.topology, from, n, settings.rule());
        let mut given = BTreeMap::new();
        let mut left = cpus.clone();
        for container in &pod.init_containers {
            let n = self.exclusive(pod, container);
            let own = match (n, container.is_sidecar) {
                // Shares with the apps.
                (0, true) => continue,
                (0, false) => left.clone(),
                (n, _) => take(&left, n)?,
            };
            if container.is_sidecar {
                left = left.difference(&own);
            }
            given.insert(container.name.clone(), own);
        }
        for container in &pod.containers {
            let n = self.exclusive(pod, container);
            if n > 0 {
                let own = take(&left, n)?;
                left = left.difference(&own);
                given.insert(container.name.clone(), own);
            }
        }
        for container in pod.all_containers() {
            given
                .entry(container.name.clone())
                .or_insert_with(|| left.clone());
        }
        Ok(given)
    }
}
