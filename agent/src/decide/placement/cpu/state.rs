//! Taking up the state of before (pkg/kubelet/cm/cpumanager/policy_static.go, v1.36: `validateState`).

use std::collections::BTreeMap;

use super::error::{CpuStateError, CpuStateFault, Misfit};
use super::{CpuManager, take};
use crate::config::Compat;
use crate::model::cpuset::CpuSet;
use crate::model::placement::CpuState;
use crate::model::pod::PodUid;

impl CpuManager {
    /// Every CPU that is in the pool or given out.
    pub(super) fn expected_cpus(&self) -> CpuSet {
        if self.settings.options.strict_cpu_reservation {
            self.allocatable()
        } else {
            self.settings.topology.all().clone()
        }
    }

    /// Takes a restored state as it is, or not at all, as kubelet does; see [`adopt`](Self::adopt) for
    /// the way that always works. A state without CPUs is that of an empty machine.
    pub fn start(&mut self, restored: CpuState) -> Result<(), CpuStateError> {
        let expected = self.expected_cpus();
        let pool = &restored.shared_pool;
        let is_strict = self.settings.options.strict_cpu_reservation;
        if pool.is_empty() {
            if restored.containers.is_empty() {
                self.state = CpuState {
                    shared_pool: expected,
                    ..restored
                };
                return Ok(());
            }
            // With a strict reservation, all that is left can be exclusive.
            if !is_strict || self.settings.compat == Compat::Kubelet {
                return Err(CpuStateError::EmptyPool);
            }
        }
        self.fits(&restored)?;
        self.state = restored;
        Ok(())
    }

    /// Whether a manager of these settings can come to a state, with strict reservation also to one that kubelet does not
    /// start with: that has given out all that it can.
    pub fn fits(&self, state: &CpuState) -> Result<(), CpuStateError> {
        let pool = &state.shared_pool;
        if self.settings.options.strict_cpu_reservation {
            let both = self.reserved.intersection(pool);
            if !both.is_empty() {
                return Err(CpuStateError::ReservedInPool {
                    reserved: both,
                    pool: pool.clone(),
                });
            }
        } else if !self.reserved.is_subset(pool) {
            return Err(CpuStateError::ReservedNotInPool {
                reserved: self.reserved.clone(),
                pool: pool.clone(),
            });
        }
        for (pod, containers) in &state.containers {
            for (container, cpus) in containers {
                if !cpus.is_disjoint(pool) {
                    return Err(CpuStateError::InPool {
                        pod: pod.clone(),
                        container: container.clone(),
                        cpus: cpus.clone(),
                        pool: pool.clone(),
                    });
                }
            }
        }
        let (machine, state) = (self.expected_cpus(), state.all());
        match state == machine {
            true => Ok(()),
            false => Err(CpuStateError::OtherCpus { machine, state }),
        }
    }

    /// Takes up what fits of a restored state, and says what does not: kept is each assignment whose
    /// CPUs are online, not reserved and not held by a pod before it; the shared pool is what is left.
    /// Those without CPUs run in the shared pool until they are placed anew. Taking up a sound state
    /// changes nothing and finds nothing.
    ///
    /// This is the way through every change that kubelet wants its file deleted for: CPUs gone
    /// offline or come online, another reservation, other options, a spoilt file. While the agent
    /// runs, make a new manager of the changed settings and let it adopt the state of the old one.
    /// Where the reservation is a number, CPUs are reserved that no pod holds, if there are as many.
    pub fn adopt(&mut self, restored: CpuState) -> Vec<CpuStateFault> {
        let faults = self.reserve_around(&restored).into_iter().collect();
        let is_fresh = restored == CpuState::default();
        let mut kept = Kept {
            online: self.settings.topology.all(),
            reserved: &self.reserved,
            by_pod: Vec::new(),
            state: CpuState::default(),
            faults,
        };
        for (uid, cpus) in &restored.pods {
            kept.take_pod(uid, cpus, restored.containers.get(uid));
        }
        for (uid, containers) in &restored.containers {
            if !restored.pods.contains_key(uid) {
                kept.take_containers(uid, containers);
            }
        }
        let Kept {
            by_pod,
            mut state,
            mut faults,
            ..
        } = kept;
        let held = by_pod.into_iter().map(|it| it.1);
        let held = held.fold(CpuSet::new(), |sum, it| sum.union(&it));
        state.shared_pool = self.expected_cpus().difference(&held);
        if !is_fresh && state.shared_pool != restored.shared_pool {
            faults.push(CpuStateFault::Pool {
                was: restored.shared_pool,
                is: state.shared_pool.clone(),
            });
        }
        self.state = state;
        self.remembered = None;
        faults
    }

    /// Moves the reserved CPUs off those that pods hold.
    fn reserve_around(&mut self, restored: &CpuState) -> Option<CpuStateFault> {
        let held = restored.held();
        let reservation = &self.settings.reservation;
        if reservation.cpus.is_some() || self.reserved.is_disjoint(&held) {
            return None;
        }
        let topology = &self.settings.topology;
        let free = topology.all().difference(&held);
        let is = take(topology, &free, reservation.n, self.settings.rule()).ok()?;
        let was = std::mem::replace(&mut self.reserved, is.clone());
        Some(CpuStateFault::Reserved { was, is })
    }
}

/// A restored state while it is looked through.
struct Kept<'a> {
    online: &'a CpuSet,
    reserved: &'a CpuSet,
    by_pod: Vec<(&'a PodUid, CpuSet)>,
    state: CpuState,
    faults: Vec<CpuStateFault>,
}

impl<'a> Kept<'a> {
    /// CPUs of a pod as a whole, all or none: what does not divide them among containers would never
    /// be released.
    fn take_pod(
        &mut self,
        uid: &'a PodUid,
        cpus: &CpuSet,
        parts: Option<&BTreeMap<String, CpuSet>>,
    ) {
        let is_part = |it: &CpuSet| !it.is_empty() && it.is_subset(cpus);
        let parts = parts.filter(|it| !it.is_empty() && it.values().all(is_part));
        match (parts, self.misfit(uid, cpus)) {
            (Some(parts), None) => {
                self.by_pod.push((uid, cpus.clone()));
                self.state.pods.insert(uid.clone(), cpus.clone());
                self.state.containers.insert(uid.clone(), parts.clone());
            }
            (_, why) => self.drop(uid, None, cpus, why.unwrap_or(Misfit::Division)),
        }
    }

    fn take_containers(&mut self, uid: &'a PodUid, containers: &BTreeMap<String, CpuSet>) {
        for (name, cpus) in containers {
            if let Some(why) = self.misfit(uid, cpus) {
                self.drop(uid, Some(name), cpus, why);
                continue;
            }
            self.by_pod.push((uid, cpus.clone()));
            let of_pod = self.state.containers.entry(uid.clone()).or_default();
            of_pod.insert(name.clone(), cpus.clone());
        }
    }

    fn drop(&mut self, pod: &PodUid, container: Option<&String>, cpus: &CpuSet, why: Misfit) {
        self.faults.push(CpuStateFault::Dropped {
            pod: pod.clone(),
            container: container.cloned(),
            cpus: cpus.clone(),
            why,
        });
    }

    /// Containers of one pod can have CPUs in common: an init container's are used again.
    fn misfit(&self, pod: &PodUid, cpus: &CpuSet) -> Option<Misfit> {
        let offline = cpus.difference(self.online);
        let reserved = cpus.intersection(self.reserved);
        if cpus.is_empty() {
            return Some(Misfit::Empty);
        } else if !offline.is_empty() {
            return Some(Misfit::Offline(offline));
        } else if !reserved.is_empty() {
            return Some(Misfit::Reserved(reserved));
        }
        let mut others = self.by_pod.iter().filter(|(other, _)| *other != pod);
        others.find_map(|(other, held)| {
            let cpus = held.intersection(cpus);
            let pod = PodUid::clone(other);
            (!cpus.is_empty()).then_some(Misfit::HeldBy { pod, cpus })
        })
    }
}
