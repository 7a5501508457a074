//! What was given out before: from kubelet's files, else from the cgroups and the admissions of the containers that
//! run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::super::Loop;
use super::super::pods::PodEntry;
use super::super::system_cpus::while_online;
use crate::apply::checkpoint;
use crate::config::{CpuManagerPolicy, MemoryManagerPolicy};
use crate::decide::placement::cpu::exclusive_cpus;
use crate::decide::placement::devices::DeviceManager;
use crate::decide::placement::managers::{Books, Managers, PlacementError, StateFault};
use crate::decide::placement::record::AdmissionRecord;
use crate::model::admission::{Admission, MAX_RECORD_BYTES};
use crate::model::cgroup_path::CgroupPath;
use crate::model::container::ContainerState;
use crate::model::kubelet_state::{CPU_FILE, DEVICE_FILE, MEMORY_FILE, StateFileError};
use crate::model::numa::NumaMask;
use crate::model::placement::{CpuState, DeviceState, MemoryState};
use crate::model::pod::{Container, Pod, PodUid};
use crate::observe::chain;
use crate::observe::metrics::labels::{MoveReason, RestoreResult};
use crate::sources::kubelet_state::{self, KubeletStateError};
use crate::sys::Root;

/// What was read of one file; `None`: it is missing.
type Read<T> = Result<Option<T>, KubeletStateError>;

impl Loop {
    /// Takes up the books of an earlier agent or of kubelet. Called when the pods and what runs of them
    /// are known, and before the first admission.
    pub(in crate::run) fn restore_placement(&mut self) {
        let placement = &self.placement;
        let directory = placement.directory.clone();
        let entries = placement.pod_entries();
        let none = BTreeMap::new();
        let read = |path: &Path, max_bytes| Root::host().read_at_most(path, max_bytes);
        let cpu = kubelet_state::read_cpus(
            &read,
            &directory,
            placement.settings.config.cpu_manager_policy.as_str(),
            entries,
            &none,
        );
        let memory = kubelet_state::read_memory(
            &read,
            &directory,
            placement.settings.config.memory_manager_policy.as_str(),
            entries,
        );
        let devices = kubelet_state::read_devices(&read, &directory);
        let may_be_pinned = may_hold(&cpu);
        let may_have_memory = may_hold(&memory);

        let cpu = self.found(cpu, &directory.join(CPU_FILE), Self::cpus_of_cgroups);
        let memory = self.found(
            memory,
            &directory.join(MEMORY_FILE),
            Self::memory_of_cgroups,
        );
        let devices = self.found(
            devices,
            &directory.join(DEVICE_FILE),
            Self::devices_of_admissions,
        );

        let mut books = Books {
            cpu,
            memory,
            devices: devices.into(),
        };
        books.devices.prepared = self.placement.load_prepared();
        let faults = self.placement.managers.adopt(books);
        self.release_after_boot();
        self.reopen(&faults, MoveReason::Restart);
        let config = &self.placement.settings.config;
        let is_off = config.cpu_manager_policy == CpuManagerPolicy::None;
        let is_memory_off = config.memory_manager_policy == MemoryManagerPolicy::None;
        // Containers that an earlier policy has pinned get the machine back.
        let has_cpuset = |cgroup: &CgroupPath| matches!(self.node.reader.cpus(cgroup), Ok(Some(_)));
        let gives_back =
            may_be_pinned && is_off && self.running().any(|(_, _, cgroup)| has_cpuset(cgroup));
        let gives_memory_back = may_have_memory && is_memory_off && self.running().next().is_some();
        let nodes = gives_memory_back.then(|| self.numa_nodes_of_pods());
        self.placement.gives_back = gives_back;
        self.placement.gives_memory_back = nodes.flatten();
        self.placement.is_giving_back = gives_back || gives_memory_back;
        self.books_changed();
        self.placement.is_pool_moved = true;
    }

    /// After a boot a plugin may call its devices otherwise, and has prepared none of them: who held some is placed
    /// anew.
    pub(in crate::run) fn release_after_boot(&mut self) {
        let managers = &mut self.placement.managers;
        let anew = held_before_boot(&self.pods, &managers.devices);
        if !anew.is_empty() {
            managers.retain(|uid, _| !anew.contains(uid));
            self.books_changed();
        }
    }

    /// The machine is another: CPUs went or came. What fits stays, the rest is placed again.
    pub(in crate::run) fn rebuild_placement(&mut self) {
        let mut settings = self.placement.settings.clone();
        settings.topology.clone_from(&self.node.topology);
        settings
            .reservation
            .clone_from(&self.hands.plan.allocatable.reservation);
        let kubelet = while_online(&self.config.kubelet, &self.node.topology.online());
        settings.reserved_system_cpus = kubelet.reserved_system_cpus;
        let rebuilt: Result<Managers, PlacementError> = Managers::new(&settings);
        let mut managers = match rebuilt {
            Ok(managers) => managers,
            Err(error) => {
                // The old books stay: nothing new is right, and what runs goes on.
                self.told.node("PlacementUnchanged", chain(&error));
                return;
            }
        };
        let faults = managers.adopt(self.placement.managers.books());
        self.placement.managers = managers;
        self.placement.settings = settings;
        self.reopen(&faults, MoveReason::Hardware);
        self.books_changed();
    }

    /// Tells what could not be kept, and has the pods placed anew that lack something.
    fn reopen(&mut self, faults: &[StateFault], why: MoveReason) {
        self.placement.reopened_by = why;
        for fault in faults {
            self.told.node("PlacementStateFault", fault.to_string());
        }
        if let Some(memory) = &mut self.placement.managers.memory {
            for entry in self.pods.values() {
                let mut containers = entry.state.containers.iter();
                if containers.all(|it| it.state == ContainerState::NotStarted) {
                    memory.begin_anew(&entry.state.pod);
                }
            }
        }
        self.reopen_unsettled();
    }

    /// Opens the admission of the pods that lack something of what they are to have.
    pub(in crate::run) fn reopen_unsettled(&mut self) {
        let managers = &self.placement.managers;
        for entry in self.pods.values_mut() {
            let is_in = entry.state.admission == Admission::Admitted;
            if is_in && super::holds(entry) && !managers.is_settled(&entry.state.pod) {
                entry.state.admission = Admission::Open;
                entry.is_dirty = true;
            }
        }
    }

    fn found<T: Default + PartialEq>(
        &mut self,
        read: Read<T>,
        path: &Path,
        rebuild: impl FnOnce(&Self) -> T,
    ) -> T {
        let error = match read {
            Ok(Some(state)) => return state,
            Ok(None) => {
                let rebuilt = rebuild(self);
                // Else nobody has ever held anything.
                if rebuilt != T::default() {
                    let message = format!(
                        "{} is missing; it is rebuilt from what runs",
                        path.display()
                    );
                    self.told.node("PlacementStateRebuilt", message);
                    self.metrics.state_restored(RestoreResult::Rebuilt);
                }
                return rebuilt;
            }
            Err(error) => error,
        };
        if let Err(error) = checkpoint::set_aside(path) {
            tracing::warn!(error = chain(&error), "set aside");
        }
        let why = chain(&error);
        match error {
            KubeletStateError::Unusable { source, .. }
                if matches!(*source, StateFileError::PolicyDiffers { .. }) =>
            {
                let message = format!("{why}; it is set aside, and nothing is given out by it");
                self.told.node("PlacementPolicyChanged", message);
                T::default()
            }
            _ => {
                let message = format!("{why}; it is set aside, and rebuilt from what runs");
                self.told.node("PlacementStateRebuilt", message);
                self.metrics.state_restored(RestoreResult::Rebuilt);
                rebuild(self)
            }
        }
    }

    /// The CPUs of running containers that are to have some alone, where the kernel has as many.
    fn cpus_of_cgroups(&self) -> CpuState {
        let config = &self.placement.settings.config;
        let mut state = CpuState::default();
        if config.cpu_manager_policy == CpuManagerPolicy::None {
            return state;
        }
        for (pod, container, cgroup) in self.running() {
            let n = exclusive_cpus(pod, container, config.pod_level_resource_managers);
            if let Ok(Some(cpus)) = self.node.reader.cpus(cgroup)
                && n > 0
                && cpus.len() == n
            {
                let containers = state.containers.entry(pod.uid.clone()).or_default();
                containers.insert(container.name.clone(), cpus);
            }
        }
        state
    }

    /// The memory of running containers that are to have some of their own, by the NUMA nodes of their cgroups.
    fn memory_of_cgroups(&self) -> MemoryState {
        let mut state = MemoryState::default();
        let Some(manager) = &self.placement.managers.memory else {
            return state;
        };
        let all = self.numa_nodes_of_pods();
        for (pod, container, cgroup) in self.running() {
            let mems = self.node.reader.own_mems(cgroup).ok().flatten();
            let nodes = mems.and_then(|it| NumaMask::of_ids(&it).ok());
            let nodes = nodes.filter(|it| were_given(*it, all));
            if let Some(blocks) = nodes.and_then(|it| manager.blocks_on(pod, container, it)) {
                let containers = state.containers.entry(pod.uid.clone()).or_default();
                containers.insert(container.name.clone(), blocks);
            }
        }
        state
    }

    /// The NUMA nodes that pods may have memory of, where the kernel says so.
    pub(in crate::run) fn numa_nodes_of_pods(&self) -> Option<NumaMask> {
        let mems = self.node.reader.mems(&self.hands.plan.kubepods_path());
        NumaMask::of_ids(&mems.ok().flatten()?).ok()
    }

    /// The devices of running containers, which show in the records of their admissions alone. One whose record
    /// is lost too is given some again.
    fn devices_of_admissions(&self) -> DeviceState {
        let mut state = DeviceState::default();
        let running: BTreeSet<&PodUid> = self.running().map(|(pod, ..)| &pod.uid).collect();
        for uid in running {
            let path = self.placement.record_path(uid);
            let bytes = match Root::host().read_at_most(&path, MAX_RECORD_BYTES) {
                Ok(bytes) => bytes,
                Err(error) => {
                    tracing::warn!(%uid, error = chain(&error), "the record of an admission");
                    continue;
                }
            };
            let devices = serde_json::from_slice::<AdmissionRecord>(&bytes)
                .map_err(|error| error.to_string())
                .and_then(|it| it.devices().map_err(|error| chain(&error)));
            match devices {
                Ok(devices) if devices.is_empty() => {}
                Ok(devices) => drop(state.containers.insert(uid.clone(), devices)),
                Err(error) => tracing::warn!(%uid, error, "the record of an admission"),
            }
        }
        state
    }

    /// Containers that run, with the cgroups they run in.
    fn running(&self) -> impl Iterator<Item = (&Pod, &Container, &CgroupPath)> {
        self.pods.values().flat_map(|entry| {
            let pod = &entry.state.pod;
            pod.all_containers().filter_map(move |container| {
                let instance = entry.instances.get(&container.name)?;
                let is_running = instance.ended.is_none() && instance.process.is_some();
                is_running.then_some((pod, container, &instance.cgroup))
            })
        })
    }

    /// Pods that are over or gone and hold something all the same: of which nobody knows yet, or that run for others.
    pub(super) fn other_holders(&self) -> BTreeSet<PodUid> {
        let holders = self.placement.managers.holders().into_iter();
        let others = holders.filter(|it| {
            self.undecided.has(it) || !self.pods.contains_key(it) && self.runs_for_others(it)
        });
        others.cloned().collect()
    }

    /// Pods that hold something and are over or gone.
    pub(super) fn has_stale_holders(&self, others: &BTreeSet<PodUid>) -> bool {
        let mut holders = self.placement.managers.holders().into_iter();
        holders.any(|uid| {
            let entry = self.pods.get(uid);
            !others.contains(uid) && entry.is_none_or(|entry| !super::holds(entry))
        })
    }
}

/// Whether a container was given the nodes that its cpuset has. `all`: those of all pods, which each cpuset of v1 begins
/// with, and which whoever gave memory back or has lost it has on both.
fn were_given(nodes: NumaMask, all: Option<NumaMask>) -> bool {
    let may_be_of_all = nodes.len() > 1 && all == Some(nodes);
    !nodes.is_empty() && !may_be_of_all
}

/// Whether containers may hold what a policy gave them that is off now: only a file of the one that is on says that none
/// does. Kubelet wants that of another policy deleted.
fn may_hold<T>(read: &Read<T>) -> bool {
    !matches!(read, Ok(Some(_)))
}

/// Pods with devices that were in before this boot, and of which nothing has begun since and something may.
fn held_before_boot(
    pods: &BTreeMap<PodUid, PodEntry>,
    devices: &DeviceManager,
) -> BTreeSet<PodUid> {
    let is_meant = |uid: &&PodUid| {
        pods.get(*uid).is_some_and(|it| {
            let mut containers = it.state.containers.iter();
            it.state.was_in_before_boot
                && containers.any(|it| it.state == ContainerState::NotStarted)
        })
    };
    devices.holders().filter(is_meant).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::config::Compat;
    use crate::decide::eviction::facts::pod_facts;
    use crate::decide::placement::devices::DeviceBooks;
    use crate::decide::pod_state::PodState;
    use crate::decide::testing;
    use crate::model::pod::QosClass;
    use crate::model::time::WallTime;
    use crate::run::own::pods::unknown_end;

    #[test]
    fn nodes_that_are_those_of_all_pods_were_given_to_nobody() {
        let mask = NumaMask::from_bits;
        for (nodes, all, expected) in [
            (0b00, None, false),
            (0b11, None, true),
            (0b11, Some(0b11), false),
            (0b10, Some(0b11), true),
            (0b01, Some(0b01), true),
        ] {
            let were_given = were_given(mask(nodes), all.map(mask));
            assert_eq!(were_given, expected, "{nodes:b} {all:?}");
        }
    }

    #[test]
    fn only_a_file_of_this_policy_says_that_nobody_holds_what_another_one_gave() {
        let fault = |source| KubeletStateError::Unusable {
            path: "state".into(),
            source: Box::new(source),
        };
        let other = StateFileError::PolicyDiffers {
            configured: "none".to_owned(),
            found: "static".to_owned(),
        };
        let state = CpuState::default();
        for (read, expected) in [
            (Ok(Some(state)), false),
            (Ok(None), true),
            (Err(fault(other)), true),
            (Err(fault(StateFileError::Corrupt)), true),
        ] {
            assert_eq!(may_hold(&read), expected, "{read:?}");
        }
    }

    #[test]
    fn devices_are_given_anew_to_pods_that_have_not_begun_since_the_boot() {
        let mut books = DeviceBooks::default();
        let mut pods = BTreeMap::new();
        let new = ContainerState::NotStarted;
        let done = ContainerState::Exited(unknown_end(Duration::ZERO));
        for (name, was_in_before_boot, states, has_devices) in [
            ("rebooted", true, [new.clone(), new.clone()], true),
            ("done in part", true, [done.clone(), new.clone()], true),
            ("over", true, [done.clone(), done], true),
            ("restarted", false, [new.clone(), new.clone()], true),
            ("without", true, [new.clone(), new], false),
        ] {
            let uid = PodUid(name.to_owned());
            let mut pod = testing::pod("app {} app {}");
            pod.uid = uid.clone();
            let facts = pod_facts(&pod, QosClass::BestEffort, Compat::Ballast);
            let mut of_pod = PodState::new(pod, "boot".to_owned(), WallTime::default());
            for (status, state) in of_pod.containers.iter_mut().zip(states) {
                status.state = state;
            }
            of_pod.was_in_before_boot = was_in_before_boot;
            let cgroup = CgroupPath::root();
            let entry = PodEntry::new(of_pod, QosClass::BestEffort, cgroup, Arc::new(facts));
            if has_devices {
                books.containers.insert(uid.clone(), BTreeMap::new());
            }
            pods.insert(uid, entry);
        }
        let mut devices = DeviceManager::new(NumaMask::EMPTY, Compat::Ballast);
        devices.adopt(books);
        let found = held_before_boot(&pods, &devices);
        assert_eq!(
            found,
            ["done in part", "rebooted"]
                .map(|it| PodUid(it.to_owned()))
                .into()
        );
    }
}
