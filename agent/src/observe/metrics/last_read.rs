//! Counters of the kernel as they were read last, to count what has come since.
//!
//! They are of an instance or of a cgroup and never of a name: a name may come late, and two that are there at once
//! may have the same.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::identity::ContainerKey;

/// What was not read for so long is gone. A container that has ended is shown for two minutes.
const KEPT: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Debug)]
pub(super) struct LastRead<K, V>(BTreeMap<K, Reading<V>>);

#[derive(Debug)]
struct Reading<V> {
    counts: V,
    /// Whose series has been counted up.
    key: ContainerKey,
    /// Boottime.
    at: Duration,
}

impl<K, V> Default for LastRead<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V: Clone + Default> LastRead<K, V> {
    /// What was read of `of` before, nothing at the first time. `next`: what is remembered now, from that.
    pub(super) fn read(
        &mut self,
        key: &ContainerKey,
        of: K,
        now: Duration,
        next: impl FnOnce(&V) -> V,
    ) -> V {
        let last = self.0.entry(of).or_insert_with(|| Reading {
            counts: V::default(),
            key: key.clone(),
            at: now,
        });
        let next = next(&last.counts);
        last.at = now;
        if last.key != *key {
            last.key = key.clone();
        }
        std::mem::replace(&mut last.counts, next)
    }

    /// Whose series there are.
    pub(super) fn keys(&self) -> BTreeSet<&ContainerKey> {
        self.0.values().map(|it| &it.key).collect()
    }

    pub(super) fn rename(&mut self, from: &ContainerKey, to: &ContainerKey) {
        for last in self.0.values_mut().filter(|it| it.key == *from) {
            last.key = to.clone();
        }
    }

    /// The series are gone: whoever has some again counts anew.
    pub(super) fn end(&mut self, key: &ContainerKey) {
        self.0.retain(|_, it| it.key != *key);
    }

    pub(super) fn forget_old(&mut self, now: Duration) {
        self.0.retain(|_, it| now.saturating_sub(it.at) < KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::PodUid;
    use crate::model::record::PodRef;
    use crate::observe::metrics::identity::ContainerLabels;

    #[test]
    fn two_of_one_name_are_counted_apart_and_a_name_that_comes_counts_nothing_again() {
        let pod = PodRef {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid: PodUid("u".to_owned()),
        };
        let named = ContainerLabels::new(&pod, "app", "").to_key();
        let by_id = ContainerLabels::new(&pod, "", "0123").to_key();
        let mut last = LastRead::<&str, u64>::default();
        let at = Duration::from_secs;
        let mut more = |key: &ContainerKey, of, now, count: u64| {
            let before = last.read(key, of, at(now), |_| count);
            last.forget_old(at(now));
            count - before
        };
        assert_eq!([more(&named, "a", 1, 5), more(&named, "b", 1, 7)], [5, 7]);
        assert_eq!([more(&named, "a", 2, 6), more(&named, "b", 2, 7)], [1, 0]);
        assert_eq!(more(&by_id, "c", 2, 3), 3);
        assert_eq!(more(&named, "c", 3, 3), 0, "it has a name now");
        // Of an instance that was not seen for long nothing is kept.
        assert_eq!(more(&named, "d", 700, 1), 1);
        assert_eq!(more(&named, "a", 701, 6), 6);
    }
}
