//! What of the machine can change while the agent runs: which CPUs are online, huge pages, and the size of the disk.

use super::hands::CpusChanged;
use super::system_cpus::offline;
use super::{Loop, isolated};
use crate::observe::chain;
use crate::sys::Root;

impl Loop {
    /// Two files, four for each size of huge pages, two of each of several NUMA nodes, and three more on v1 where
    /// containers are placed or CPUs have moved before, unless something has changed. What cannot be read is as it was.
    pub(super) fn look_at_hardware(&mut self) {
        let kubelet = &self.config.kubelet;
        let (node, root) = (&mut self.node, Root::host());
        match self.hands.refresh_cpus(node, &root, kubelet) {
            Ok(None) => {}
            Ok(Some(changed)) => {
                self.cpus_changed(&changed);
                self.rebuild_placement();
            }
            Err(error) => tracing::warn!(error = chain(&error), "read the CPUs again"),
        }
        let (node, kubelet) = (&mut self.node, &self.config.kubelet);
        match self.hands.refresh_hugepages(node, &root, kubelet) {
            Ok(false) => {}
            Ok(true) => self.rebuild_placement(),
            Err(error) => tracing::warn!(error = chain(&error), "count the huge pages again"),
        }
        let kubelet = &self.config.kubelet;
        if let Err(error) = self.hands.refresh_ancestors(&self.node, kubelet) {
            tracing::warn!(error = chain(&error), "read the cpuset above kubepods");
        }
        let size = self.pressure.disk_size();
        if let Err(error) = self.hands.refresh_disk(&mut self.node, size, kubelet) {
            tracing::warn!(error = chain(&error), "count the disk again");
        }
    }

    /// What is told as long as CPUs are offline that are to be kept for the system.
    pub(super) fn offline_reserved(&self) -> Option<String> {
        let told = offline(&self.config.kubelet, &self.node.topology.online())?;
        Some(format!("kubelet.reservedSystemCPUs: {told}"))
    }

    /// What is told as long as containers share isolated CPUs.
    pub(super) fn shared_isolated(&self) -> Option<String> {
        let pool = self.placement.managers.cpu.as_ref()?.common();
        let told = isolated::shared(pool, &self.node.topology.isolated)?;
        Some(format!("kubelet.cpuManagerPolicy: {told}"))
    }

    fn cpus_changed(&self, changed: &CpusChanged) {
        let mut parts = Vec::new();
        for (cpus, what) in [(&changed.went, "offline"), (&changed.came, "online")] {
            if !cpus.is_empty() {
                parts.push(format!("CPUs {cpus} went {what}"));
            }
        }
        let topology = &self.node.topology;
        parts.push(format!(
            "the node has {} now ({})",
            topology.online(),
            topology.shape()
        ));
        parts.extend(changed.fault.as_ref().map(|it| chain(it)));
        parts.extend(self.offline_reserved());
        self.told.node("CpusChanged", parts.join("; "));
    }
}
