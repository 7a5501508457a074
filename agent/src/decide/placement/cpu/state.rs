//! Taking up the state of before (spec placement 1.17).

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
        if is_strict {
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
        let mut all = pool.clone();
        for (pod, containers) in &restored.containers {
            for (container, cpus) in containers {
                if !cpus.is_disjoint(pool) {
                    return Err(CpuStateError::InPool {
                        pod: pod.clone(),
                        container: container.clone(),
                        cpus: cpus.clone(),
                        pool: pool.clone(),
                    });
                }
                all = all.union(cpus);
            }
        }
        for cpus in restored.pods.values() {
            all = all.union(cpus);
        }
        if all != expected {
            return Err(CpuStateError::OtherCpus {
                machine: expected,
                state: all,
            });
        }
        self.state = restored;
        Ok(())
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
        let mut faults = Vec::new();
        self.reserve_around(&restored, &mut faults);
        let CpuState {
            shared_pool: was,
            containers,
            pods,
        } = restored;
        let is_fresh = was.is_empty() && containers.is_empty() && pods.is_empty();
        let mut kept = CpuState::default();
        let mut uids: Vec<&PodUid> = containers.keys().chain(pods.keys()).collect();
        uids.sort_unstable();
        uids.dedup();
        let mut held = Held {
            manager: self,
            by_pod: Vec::new(),
        };
        for uid in uids {
            let dropped = |container: Option<&String>, cpus: &CpuSet, why| CpuStateFault::Dropped {
                pod: uid.clone(),
                container: container.cloned(),
                cpus: cpus.clone(),
                why,
            };
            if let Some(cpus) = pods.get(uid) {
                if let Err(why) = held.check(uid, cpus) {
                    faults.push(dropped(None, cpus, why));
                    continue;
                }
                held.by_pod.push((uid.clone(), cpus.clone()));
                kept.pods.insert(uid.clone(), cpus.clone());
            }
            for (name, cpus) in containers.get(uid).into_iter().flatten() {
                if let Err(why) = held.check(uid, cpus) {
                    faults.push(dropped(Some(name), cpus, why));
                    continue;
                }
                held.by_pod.push((uid.clone(), cpus.clone()));
                let of_pod = kept.containers.entry(uid.clone()).or_default();
                of_pod.insert(name.clone(), cpus.clone());
            }
        }
        let all = held.by_pod.iter();
        let all = all.fold(CpuSet::new(), |sum, (_, it)| sum.union(it));
        kept.shared_pool = self.expected_cpus().difference(&all);
        if !is_fresh && kept.shared_pool != was {
            let is = kept.shared_pool.clone();
            faults.push(CpuStateFault::Pool { was, is });
        }
        self.state = kept;
        self.remembered = None;
        faults
    }

    /// Moves the reserved CPUs off those that pods hold.
    fn reserve_around(&mut self, restored: &CpuState, faults: &mut Vec<CpuStateFault>) {
        let containers = restored.containers.values().flat_map(|it| it.values());
        let held = containers
            .chain(restored.pods.values())
            .fold(CpuSet::new(), |sum, it| sum.union(it));
        if self.settings.reservation.cpus.is_some() || self.reserved.is_disjoint(&held) {
            return;
        }
        let topology = &self.settings.topology;
        let free = topology.all().difference(&held);
        let n = self.settings.reservation.n;
        if let Ok(is) = take(topology, &free, n, self.settings.rule()) {
            let was = std::mem::replace(&mut self.reserved, is.clone());
            faults.push(CpuStateFault::Reserved { was, is });
        }
    }
}

/// What has been kept so far.
struct Held<'a> {
    manager: &'a CpuManager,
    by_pod: Vec<(PodUid, CpuSet)>,
}

impl Held<'_> {
    /// Containers of one pod can have CPUs in common: an init container's are used again.
    fn check(&self, pod: &PodUid, cpus: &CpuSet) -> Result<(), Misfit> {
        let offline = cpus.difference(self.manager.settings.topology.all());
        let reserved = cpus.intersection(&self.manager.reserved);
        if cpus.is_empty() {
            return Err(Misfit::Empty);
        } else if !offline.is_empty() {
            return Err(Misfit::Offline(offline));
        } else if !reserved.is_empty() {
            return Err(Misfit::Reserved(reserved));
        }
        for (other, held) in self.by_pod.iter().filter(|(other, _)| other != pod) {
            let both = held.intersection(cpus);
            if !both.is_empty() {
                return Err(Misfit::HeldBy {
                    pod: other.clone(),
                    cpus: both,
                });
            }
        }
        Ok(())
    }
}
