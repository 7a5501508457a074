//! How long pods waited for memory where the kernel has no PSI: time in reclaim by cgroup, summed
//! up to container, pod, QoS class and kubepods.
//!
//! The programs count what is below kubepods, so nothing is known of the node as a whole. A count
//! goes with its cgroup; what it had added to those above stays, as in PSI. What a container has waited
//! under its id goes on under its name once that is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::attribution::CgroupIndex;
use super::naming::Names;
use crate::model::attribution::Level;
use crate::model::event::{CgroupId, CgroupLineage};
use crate::model::eviction::{StallSource, StallTotals};
use crate::model::pod::{PodUid, QosClass};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReclaimStalls {
    /// Each cgroup as it was counted last, without those below it.
    counted: BTreeMap<CgroupId, Duration>,
    kubepods: Duration,
    classes: BTreeMap<QosClass, Duration>,
    pods: BTreeMap<PodUid, PodStalls>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PodStalls {
    whole: Duration,
    /// By name, and by id where there is none.
    containers: BTreeMap<String, Duration>,
}

impl PodStalls {
    /// Puts what stands under an id under the name of its container.
    fn take_names(&mut self, uid: &PodUid, names: &Names) {
        let named = self.containers.keys().filter_map(|id| {
            let name = names.container(uid, id)?;
            Some((id.clone(), name.to_string()))
        });
        let named: Vec<(String, String)> = named.collect();
        for (id, name) in named {
            let waited = self.containers.remove(&id).unwrap_or_default();
            *self.containers.entry(name).or_default() += waited;
        }
    }
}

impl ReclaimStalls {
    /// Adds what was waited since the last call. `counts` are all that there are, each of the tasks
    /// of one cgroup without those below it. Pods that are gone are forgotten, and names taken that have
    /// come.
    pub fn update(
        &mut self,
        counts: impl IntoIterator<Item = (CgroupLineage, Duration)>,
        index: &CgroupIndex,
    ) {
        let before = std::mem::take(&mut self.counted);
        for (lineage, count) in counts {
            if !lineage.in_root {
                continue;
            }
            self.counted.insert(lineage.cgroup_id, count);
            // One that fell is of a new cgroup with the id of an old one.
            let known = before.get(&lineage.cgroup_id);
            let more = known.and_then(|it| count.checked_sub(*it));
            self.add(&lineage, more.unwrap_or(count), index);
        }
        let pods = index.pods();
        let live: BTreeSet<&PodUid> = pods.iter().filter_map(|it| it.uid()).collect();
        self.pods.retain(|uid, _| live.contains(uid));
        for (uid, stalls) in &mut self.pods {
            stalls.take_names(uid, &index.names);
        }
    }

    fn add(&mut self, lineage: &CgroupLineage, more: Duration, index: &CgroupIndex) {
        self.kubepods += more;
        let attributed = index.attribute(lineage);
        let Some(owner) = &attributed.owner else {
            return;
        };
        let (uid, qos, key) = match &owner.level {
            Level::Kubepods | Level::Qos(_) => return,
            Level::Pod { uid, qos } => (uid, qos, None),
            Level::Container { uid, qos, key } => (uid, qos, Some(key)),
        };
        *self.classes.entry(*qos).or_default() += more;
        let stalls = self.pods.entry(uid.clone()).or_default();
        stalls.whole += more;
        if let Some(key) = key {
            let name = attributed.container.as_deref().unwrap_or(&key.id);
            *stalls.containers.entry(name.to_owned()).or_default() += more;
        }
    }

    pub fn kubepods(&self) -> StallTotals {
        totals(self.kubepods)
    }

    pub fn class(&self, class: QosClass) -> StallTotals {
        totals(self.classes.get(&class).copied().unwrap_or_default())
    }

    pub fn pod(&self, uid: &PodUid) -> StallTotals {
        totals(self.pods.get(uid).map(|it| it.whole).unwrap_or_default())
    }

    /// Over all its restarts. `name`: its id, if it has none.
    pub fn container(&self, uid: &PodUid, name: &str) -> StallTotals {
        let pod = self.pods.get(uid);
        let stalled = pod.and_then(|it| it.containers.get(name).copied());
        totals(stalled.unwrap_or_default())
    }
}

fn totals(stalled: Duration) -> StallTotals {
    StallTotals {
        source: StallSource::Reclaim,
        some_us: u64::try_from(stalled.as_micros()).unwrap_or(u64::MAX),
        full_us: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{key, register, registered};

    const POD: u64 = 3;
    const MAIN: u64 = 4;

    /// kubepods (1) / burstable (2) / pod a (3) / container main (4).
    fn index() -> CgroupIndex {
        let qos = QosClass::Burstable;
        let mut index = CgroupIndex::default();
        registered(&mut index, 1, Level::Kubepods);
        registered(&mut index, 2, Level::Qos(qos));
        register(&mut index, [POD, MAIN], qos, "a", "main");
        index
    }

    fn count(cgroup: u64, below: &[u64], milliseconds: u64) -> (CgroupLineage, Duration) {
        let mut below = below.iter().map(|id| CgroupId(*id));
        let lineage = CgroupLineage {
            cgroup_id: CgroupId(cgroup),
            below_root: std::array::from_fn(|_| below.next()),
            in_root: true,
        };
        (lineage, Duration::from_millis(milliseconds))
    }

    /// Milliseconds of kubepods, Burstable, the pod and its container.
    #[track_caller]
    fn check(stalls: &ReclaimStalls, milliseconds: [u64; 4]) {
        let uid = PodUid("uid-a".into());
        let found = [
            stalls.kubepods(),
            stalls.class(QosClass::Burstable),
            stalls.pod(&uid),
            stalls.container(&uid, "main"),
        ];
        assert!(found.iter().all(|it| it.source == StallSource::Reclaim));
        assert_eq!(found.map(|it| it.some_us), milliseconds.map(|it| it * 1000));
    }

    #[test]
    fn what_a_cgroup_waits_counts_for_all_above_it() {
        let mut stalls = ReclaimStalls::default();
        stalls.update([count(MAIN, &[2, POD, MAIN], 10)], &index());
        check(&stalls, [10, 10, 10, 10]);
        let all = [
            count(MAIN, &[2, POD, MAIN], 15),
            count(POD, &[2, POD], 100),
            // Below the container, and in a cgroup that is not of a pod.
            count(9, &[2, POD, MAIN], 1000),
            count(8, &[8], 10_000),
        ];
        stalls.update(all, &index());
        check(&stalls, [11_115, 1115, 1115, 1015]);
        stalls.update(all, &index());
        check(&stalls, [11_115, 1115, 1115, 1015]);
        assert_eq!(stalls.class(QosClass::BestEffort).some_us, 0);
    }

    #[test]
    fn a_count_that_goes_with_its_cgroup_stays_with_those_above() {
        let mut stalls = ReclaimStalls::default();
        stalls.update([count(MAIN, &[2, POD, MAIN], 10)], &index());
        stalls.update([], &index());
        check(&stalls, [10, 10, 10, 10]);
        // Started again with the same id.
        stalls.update([count(MAIN, &[2, POD, MAIN], 4)], &index());
        check(&stalls, [14, 14, 14, 14]);
        stalls.update([count(MAIN, &[2, POD, MAIN], 3)], &index());
        check(&stalls, [17, 17, 17, 17]);

        let mut index = index();
        index.retire(CgroupId(POD));
        stalls.update([], &index);
        check(&stalls, [17, 17, 0, 0]);
    }

    #[test]
    fn what_was_waited_under_an_id_is_the_named_containers() {
        let mut index = index();
        let uid = PodUid("uid-a".into());
        let (qos, ids) = (QosClass::Burstable, ["0a", "0b"]);
        for (cgroup, id) in [5, 6].into_iter().zip(ids) {
            let (uid, key) = (uid.clone(), key(id));
            registered(&mut index, cgroup, Level::Container { uid, qos, key });
        }
        let mut stalls = ReclaimStalls::default();
        let waited = |[first, second]: [u64; 2]| {
            let both = [(5, first), (6, second)];
            both.map(|(id, milliseconds)| count(id, &[2, POD, id], milliseconds))
        };
        stalls.update(waited([10, 3]), &index);
        let of = |stalls: &ReclaimStalls| {
            let of = |name| stalls.container(&uid, name).some_us / 1000;
            [of("app"), of(ids[0]), of(ids[1])]
        };
        assert_eq!(of(&stalls), [0, 10, 3]);
        index.names.name_container(&uid, &key(ids[0]), "app");
        stalls.update(waited([15, 4]), &index);
        assert_eq!(of(&stalls), [15, 0, 4]);
        // The one before it, whose name comes later.
        index.names.name_container(&uid, &key(ids[1]), "app");
        stalls.update(waited([16, 4]), &index);
        assert_eq!(of(&stalls), [20, 0, 0]);
        check(&stalls, [20, 20, 20, 0]);
    }

    #[test]
    fn what_waits_outside_of_kubepods_is_not_counted() {
        let (mut lineage, waited) = count(7, &[], 10);
        lineage.in_root = false;
        let mut stalls = ReclaimStalls::default();
        stalls.update([(lineage, waited)], &index());
        check(&stalls, [0, 0, 0, 0]);
    }
}
