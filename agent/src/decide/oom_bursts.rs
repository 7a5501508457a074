//! Which forensic record an OOM kill goes to: a storm of kills by one limit is one record a second,
//! not a thousand.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::event::{AttributionMethod, CgroupId, OomKill};
use crate::model::forensics::RecordId;

/// Kills by one limit within this time of the first are one record. Then comes another, so that a
/// long storm shows how it went on.
pub const WINDOW: Duration = Duration::from_secs(1);

/// What makes two kills a matter of one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Limit(CgroupId),
    /// The node, or the NUMA nodes that are allowed, ran out.
    Node,
    /// Nobody knows the limit, or somebody asked for the kill: only kills in one cgroup are taken together.
    Unknown(CgroupId),
}

impl Cause {
    fn of(kill: &OomKill) -> Self {
        let unknown = Self::Unknown(kill.victim_cgroup.cgroup_id);
        match (kill.limit_cgroup, kill.method) {
            (Some(limit), _) => Self::Limit(limit.cgroup_id),
            // Some limit, which may be another one for each kill.
            (None, _) if kill.has_unnamed_limit() || kill.was_asked_for() => unknown,
            (None, AttributionMethod::Exact | AttributionMethod::Derived) => Self::Node,
            (None, AttributionMethod::None) => unknown,
        }
    }
}

/// The records that kills may still join.
#[derive(Debug)]
pub struct OomBursts {
    next: RecordId,
    open: BTreeMap<Cause, (RecordId, Duration)>,
}

impl OomBursts {
    /// `next`: number of the first record.
    pub fn new(next: RecordId) -> Self {
        Self {
            next,
            open: BTreeMap::new(),
        }
    }

    /// The record of a kill.
    pub fn record_of(&mut self, kill: &OomKill) -> RecordId {
        let at = Duration::from_nanos(kill.at_ns);
        // By distance, since kills of several CPUs may come out of order.
        self.open
            .retain(|_, (_, first)| first.abs_diff(at) < WINDOW);
        let next = &mut self.next;
        let (id, _) = self.open.entry(Cause::of(kill)).or_insert_with(|| {
            let id = *next;
            *next = next.next();
            (id, at)
        });
        *id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::oom_kill;
    use crate::model::event::{CgroupLineage, OomConstraint};

    fn lineage(id: u64) -> CgroupLineage {
        CgroupLineage {
            cgroup_id: CgroupId(id),
            below_root: [None; 3],
            in_root: true,
        }
    }

    fn kill(ms: u64, victim: u64, limit: Option<u64>, method: AttributionMethod) -> OomKill {
        OomKill {
            limit_cgroup: limit.map(lineage),
            method,
            ..oom_kill(ms, CgroupId(victim))
        }
    }

    #[test]
    fn kills_of_one_limit_share_a_record_for_a_second() {
        let mut bursts = OomBursts::new(RecordId(5));
        for (ms, limit, expected) in [
            (0, 1, 5),
            (10, 2, 6),
            (5, 1, 5),
            (999, 1, 5),
            (1000, 1, 7),
            (1009, 2, 6),
            (1999, 1, 7),
        ] {
            let id = bursts.record_of(&kill(ms, 9, Some(limit), AttributionMethod::Exact));
            assert_eq!(id, RecordId(expected), "limit {limit} at {ms} ms");
        }
    }

    #[test]
    fn kills_by_the_node_are_one_matter_and_unknown_ones_are_not() {
        let mut bursts = OomBursts::new(RecordId(1));
        let node = Some(OomConstraint::Global);
        for (victim, method, constraint, expected) in [
            (8, AttributionMethod::Derived, node, 1),
            (9, AttributionMethod::Exact, node, 1),
            (8, AttributionMethod::None, None, 2),
            (9, AttributionMethod::None, None, 3),
            (8, AttributionMethod::None, None, 2),
            // Somebody asked for it.
            (7, AttributionMethod::Exact, None, 4),
        ] {
            let kill = OomKill {
                constraint,
                ..kill(0, victim, None, method)
            };
            let id = bursts.record_of(&kill);
            assert_eq!(id, RecordId(expected), "victim {victim}, {method:?}");
        }
    }

    #[test]
    fn kills_by_limits_that_nobody_can_name_are_of_one_cause_in_one_cgroup_alone() {
        let mut bursts = OomBursts::new(RecordId(1));
        for (ms, victim, constraint, expected) in [
            (0, 8, OomConstraint::Memcg, 1),
            (400, 9, OomConstraint::Memcg, 2),
            (500, 8, OomConstraint::Memcg, 1),
            (600, 8, OomConstraint::Global, 3),
            (700, 9, OomConstraint::Cpuset, 3),
        ] {
            let kill = OomKill {
                constraint: Some(constraint),
                ..kill(ms, victim, None, AttributionMethod::Exact)
            };
            let id = bursts.record_of(&kill);
            assert_eq!(id, RecordId(expected), "victim {victim}, {constraint:?}");
        }
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut bursts = OomBursts::new(RecordId(1));
        for i in 0..5000 {
            bursts.record_of(&kill(i * 10, 9, Some(i), AttributionMethod::Exact));
        }
        assert!(bursts.open.len() <= 100, "{}", bursts.open.len());
    }
}
