//! Whom the kernel has just killed for memory. In: kills, as soon as they are taken out of the ring.
//!
//! Invariant: nobody reads of the memory of one that is named here. `/proc/PID/status`, `stat` and their like hold the
//! memory of a process while they are read (`get_task_mm`, kernel/fork.c), and if it ends meanwhile the reader frees it,
//! milliseconds after its parent was told of the end. A cgroup that is at its limit then has no room for what the
//! parent does next, and the kernel kills again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a kill takes at most, as it is taken here: after that its pid may be another's.
const DYING: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug, Default)]
pub(in crate::run) struct Victims(Mutex<BTreeMap<u32, Duration>>);

impl Victims {
    /// `now`: boottime. Forgets who is dead.
    pub(super) fn add(&self, pids: impl Iterator<Item = u32>, now: Duration) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|_, at| is_dying(*at, now));
        told.extend(pids.map(|pid| (pid, now)));
    }

    pub(in crate::run) fn has(&self, pid: u32, now: Duration) -> bool {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.get(&pid).is_some_and(|at| is_dying(*at, now))
    }
}

fn is_dying(at: Duration, now: Duration) -> bool {
    now.saturating_sub(at) < DYING
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_is_one_until_its_pid_may_be_anothers() {
        let victims = Victims::default();
        let at = |seconds| Duration::from_secs(seconds);
        victims.add([7, 8].into_iter(), at(10));
        victims.add([9].into_iter(), at(11));
        let dying = |now| -> Vec<u32> {
            let all = 6..10;
            all.filter(|pid| victims.has(*pid, now)).collect()
        };
        assert_eq!(dying(at(11)), [7, 8, 9]);
        assert_eq!(dying(at(12)), [9]);
        victims.add([].into_iter(), at(12));
        let left = victims.0.lock().expect("nobody panicked");
        assert_eq!(left.keys().collect::<Vec<_>>(), [&9]);
    }
}
