//! Why the kernel killed where no hook could read its reason: whether the node ran out of memory, told by
//! what else is known at the moment of the kill, or, where no program sees kills, by what the kernel has not counted
//! before it ([`LimitHits`]).
//!
//! On what is not known nothing is derived: the limit stays unknown. But for one thing: a task of which nobody knows
//! whether it was confined to some NUMA nodes was not, if it reclaimed memory of the node right before. Few are, and a
//! node that runs out of memory is to be told.

use std::time::Duration;

use crate::model::cgroup_files::MemoryEvents;
use crate::model::event::{AttributionMethod, OomConstraint, OomKill, Reclaim};

/// The kernel counts that a limit is reached (`oom` of `memory.events`) before it looks for a victim, with no bound for
/// the time between the two: only one task of the node looks for one at a time. Nobody has seen it take seconds.
const BEFORE_A_KILL: Duration = Duration::from_secs(30);

/// Two looks at the counts that are further apart say nothing of what came first in between.
const LOOK_GAP: Duration = Duration::from_secs(20);

/// A stall that was found so long before the look that found a kill says nothing of it.
const AROUND_A_KILL: Duration = Duration::from_secs(10);

/// What was seen around a kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Programs note both kinds of reclaim, so the one that a kill names is the one that came last.
    pub tells_reclaim: bool,
    /// The program looks for a limit that is reached, from the allocating task upwards. Where it found
    /// none, no memory cgroup was the reason.
    pub looks_for_limits: bool,
    /// Since two seconds before at most, tasks had to free memory of the node by themselves (`allocstall`
    /// of /proc/vmstat): nobody is killed for the node without that, and for a limit with it only by
    /// chance. `None`: not known.
    pub has_stalled: Option<bool>,
    /// The allocating task may use a part of the NUMA nodes alone. `None`: not known.
    pub is_confined: Option<bool>,
}

/// A kill with the reason that follows from the evidence. `None`: it stays as it is. A memory policy is not told
/// from the node.
pub fn derive(kill: &OomKill, evidence: Evidence) -> Option<OomKill> {
    if !is_open(kill, evidence.tells_reclaim) || may_be_asked_for(kill, evidence) {
        return None;
    }
    let is_told = evidence.tells_reclaim && kill.last_reclaim.is_some();
    let is_seen = evidence.looks_for_limits && evidence.has_stalled == Some(true);
    if !is_told && !is_seen {
        return None;
    }
    let constraint = match evidence.is_confined {
        Some(true) => OomConstraint::Cpuset,
        Some(false) => OomConstraint::Global,
        None if is_told => OomConstraint::Global,
        None => return None,
    };
    Some(OomKill {
        constraint: Some(constraint),
        method: AttributionMethod::Derived,
        limit_cgroup: None,
        limit_usage_bytes: None,
        limit_max_bytes: None,
        ..kill.clone()
    })
}

/// What somebody asks for by SysRq f is done by a worker of the kernel (drivers/tty/sysrq.c), which reclaims nothing for
/// it; what it is known to have reclaimed may be of long ago.
fn may_be_asked_for(kill: &OomKill, evidence: Evidence) -> bool {
    let has_reclaimed_none = evidence.tells_reclaim && kill.last_reclaim.is_none();
    kill.trigger_comm.starts_with("kworker/")
        && (evidence.has_stalled == Some(false) || has_reclaimed_none)
}

/// It may have been the node, so the rest of the evidence is worth a look.
pub fn is_open(kill: &OomKill, tells_reclaim: bool) -> bool {
    if kill.was_exiting || kill.method == AttributionMethod::Exact {
        return false;
    }
    match kill.last_reclaim.filter(|_| tells_reclaim) {
        // Right before (mm/page_alloc.c, `__alloc_pages_may_oom`): a cgroup that is full beside it is chance.
        Some(Reclaim::ForNode) => true,
        Some(Reclaim::AtLimit) => false,
        None => kill.limit_cgroup.is_none(),
    }
}

/// How often a limit was reached below a cgroup of v2 right below the root, itself included, as looked at all the time.
/// A kill below it for which no limit was reached was by the node, or by those of its NUMA nodes that a task was
/// confined to: counts do not tell these apart.
///
/// The counts have to be those of everything below: with the mount option `memory_localevents` they are not, and then
/// have no kill either.
#[derive(Debug, Default)]
pub struct LimitHits(Option<Seen>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    n: u64,
    /// Kills below the cgroup: at `since`, and now.
    kills_before: u64,
    kills: u64,
    /// No limit was reached since, boottime; and when it was looked at last.
    since: Duration,
    at: Duration,
}

impl LimitHits {
    /// What is counted `at`; `None`: it cannot be read, or there are cgroups above that are not seen.
    pub fn look(&mut self, counted: Option<MemoryEvents>, at: Duration) {
        let counts = counted.and_then(|it| it.oom.zip(it.oom_kill));
        self.0 = counts.map(|(n, kills)| match self.0 {
            Some(before) if before.n == n && at.saturating_sub(before.at) <= LOOK_GAP => Seen {
                kills,
                at,
                ..before
            },
            _ => Seen {
                n,
                kills_before: kills,
                kills,
                since: at,
                at,
            },
        });
    }

    pub fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// Kills that were found counted `at`, and before the last look here, were by no limit. False: or nobody can say.
    pub fn were_none_before(&self, at: Duration) -> bool {
        let is_long = |it: Seen| it.since.saturating_add(BEFORE_A_KILL) <= at;
        self.0
            .is_some_and(|it| it.kills > it.kills_before && is_long(it))
    }
}

/// When tasks had to free memory of the node by themselves (`allocstall` of /proc/vmstat), as looked at all the time.
/// Nobody is killed for the node without that: somebody asked for the kill (SysRq f), which no limit counts either.
#[derive(Debug, Default)]
pub struct NodeStalls {
    counted: Option<u64>,
    /// When more were found than before, boottime.
    last: Option<Duration>,
}

impl NodeStalls {
    /// What is counted `at`; `None`: it cannot be read.
    pub fn look(&mut self, counted: Option<u64>, at: Duration) {
        let is_more = |(before, now): (u64, u64)| now > before;
        if self.counted.zip(counted).is_some_and(is_more) {
            self.last = Some(at);
        }
        self.counted = counted;
    }

    /// Kills that were found counted `at` may have been by the node.
    pub fn were_before(&self, at: Duration) -> bool {
        let is_near = |it: Duration| it.saturating_add(AROUND_A_KILL) >= at;
        self.last.is_some_and(is_near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::oom_kill;
    use crate::model::event::CgroupId;

    /// Looks at these counts, each by its second: limits that were reached, kills.
    fn hits(looks: &[(u64, u64, u64)]) -> LimitHits {
        let mut hits = LimitHits::default();
        for (at, oom, oom_kill) in looks {
            let counted = MemoryEvents {
                oom: Some(*oom),
                oom_kill: Some(*oom_kill),
                ..MemoryEvents::default()
            };
            hits.look(Some(counted), Duration::from_secs(*at));
        }
        hits
    }

    #[test]
    fn a_kill_for_which_no_limit_was_reached_is_by_the_node() {
        for (looks, is_excluded, why) in [
            (&[(100, 4, 2), (120, 4, 2), (131, 4, 3)][..], true, "quiet"),
            (
                &[(100, 4, 2), (120, 5, 2), (131, 5, 3)],
                false,
                "reached before it",
            ),
            (
                &[(100, 4, 2), (120, 4, 2), (131, 5, 3)],
                false,
                "reached by then",
            ),
            (
                &[(110, 4, 2), (120, 4, 2), (131, 4, 3)],
                false,
                "not looked at for long",
            ),
            (
                &[(100, 4, 2), (131, 4, 3)],
                false,
                "not looked at in between",
            ),
            (
                &[(100, 4, 2), (120, 4, 2), (131, 4, 2)],
                false,
                "counts of the cgroup alone",
            ),
            (
                &[(100, 4, 2), (120, 5, 3), (140, 5, 3), (151, 5, 4)],
                true,
                "quiet since",
            ),
            (&[], false, "never read"),
        ] {
            let at = looks.last().map_or(131, |(at, ..)| *at);
            let hits = hits(looks);
            assert_eq!(
                hits.were_none_before(Duration::from_secs(at)),
                is_excluded,
                "{why}"
            );
        }
    }

    #[test]
    fn a_kill_before_which_nobody_had_to_free_memory_is_not_by_the_node() {
        let at = Duration::from_secs;
        for (looks, may_be, why) in [
            (
                &[(100, Some(4)), (130, Some(5)), (131, Some(5))][..],
                true,
                "right before",
            ),
            (
                &[(100, Some(4)), (130, Some(4)), (131, Some(5))],
                true,
                "found with it",
            ),
            (
                &[(100, Some(4)), (120, Some(5)), (131, Some(5))],
                false,
                "long before",
            ),
            (
                &[(100, Some(4)), (130, Some(4)), (131, Some(4))],
                false,
                "never",
            ),
            (&[(131, Some(4))], false, "not looked at before"),
            (&[(130, None), (131, Some(4))], false, "not read before"),
        ] {
            let mut stalls = NodeStalls::default();
            for (second, counted) in looks {
                stalls.look(*counted, at(*second));
            }
            assert_eq!(stalls.were_before(at(131)), may_be, "{why}");
        }
    }

    #[test]
    fn a_cgroup_that_cannot_be_read_is_known_anew() {
        let mut hits = hits(&[(100, 4, 2), (120, 4, 2), (131, 4, 3)]);
        hits.look(None, Duration::from_secs(132));
        assert!(!hits.is_known() && !hits.were_none_before(Duration::from_secs(131)));
    }

    const NODE: Evidence = Evidence {
        tells_reclaim: true,
        looks_for_limits: true,
        has_stalled: Some(true),
        is_confined: Some(false),
    };

    fn reason(kill: &OomKill, evidence: Evidence) -> Option<OomConstraint> {
        derive(kill, evidence)?.constraint
    }

    fn kill() -> OomKill {
        OomKill {
            method: AttributionMethod::None,
            ..oom_kill(0, CgroupId(7))
        }
    }

    #[test]
    fn a_kill_without_a_full_cgroup_on_a_node_that_stalls_is_by_the_node() {
        let confined = Evidence {
            is_confined: Some(true),
            ..NODE
        };
        assert_eq!(reason(&kill(), NODE), Some(OomConstraint::Global));
        assert_eq!(reason(&kill(), confined), Some(OomConstraint::Cpuset));
    }

    #[test]
    fn the_last_reclaim_of_the_task_decides_where_it_is_told() {
        let after = |last_reclaim| OomKill {
            last_reclaim: Some(last_reclaim),
            ..kill()
        };
        let bare = Evidence {
            looks_for_limits: false,
            has_stalled: None,
            ..NODE
        };
        let global = Some(OomConstraint::Global);
        assert_eq!(reason(&after(Reclaim::ForNode), bare), global);
        // The task is gone, or in a PID namespace that is not seen.
        let unseen = Evidence {
            is_confined: None,
            ..bare
        };
        assert_eq!(reason(&after(Reclaim::ForNode), unseen), global);
        assert_eq!(reason(&after(Reclaim::AtLimit), NODE), None);
        // A cgroup that is full by chance.
        let full = OomKill {
            constraint: Some(OomConstraint::Memcg),
            limit_cgroup: Some(kill().victim_cgroup),
            limit_max_bytes: Some(1),
            method: AttributionMethod::Derived,
            ..after(Reclaim::ForNode)
        };
        let derived = derive(&full, bare).expect("the node had too little");
        assert_eq!(derived.constraint, global);
        assert_eq!(
            (derived.limit_cgroup, derived.limit_max_bytes),
            (None, None)
        );
        // What one program notes alone may be of long ago.
        let alone = Evidence {
            tells_reclaim: false,
            ..bare
        };
        assert_eq!(reason(&after(Reclaim::ForNode), alone), None);
    }

    #[test]
    fn a_kill_by_a_worker_that_has_reclaimed_nothing_is_not_by_the_node() {
        let of = |comm: &str, last_reclaim| OomKill {
            trigger_comm: comm.to_owned(),
            last_reclaim,
            ..kill()
        };
        let quiet = Evidence {
            has_stalled: Some(false),
            ..NODE
        };
        let unknown = Evidence {
            has_stalled: None,
            ..NODE
        };
        let (noted, global) = (Some(Reclaim::ForNode), Some(OomConstraint::Global));
        for (comm, last_reclaim, evidence, expected) in [
            ("kworker/0:1", noted, quiet, None),
            ("kworker/0:1", noted, NODE, global),
            ("kworker/0:1", noted, unknown, global),
            ("kworker/0:1", None, NODE, None),
            ("java", noted, quiet, global),
            ("java", None, NODE, global),
        ] {
            let kill = of(comm, last_reclaim);
            assert_eq!(reason(&kill, evidence), expected, "{kill:?} {evidence:?}");
        }
    }

    #[test]
    fn on_less_nothing_is_derived() {
        for evidence in [
            Evidence {
                looks_for_limits: false,
                ..NODE
            },
            Evidence {
                has_stalled: Some(false),
                ..NODE
            },
            Evidence {
                has_stalled: None,
                ..NODE
            },
            Evidence {
                is_confined: None,
                ..NODE
            },
        ] {
            assert_eq!(reason(&kill(), evidence), None, "{evidence:?}");
        }
    }

    #[test]
    fn what_a_program_knows_stays() {
        let by_limit = OomKill {
            limit_cgroup: Some(kill().victim_cgroup),
            ..kill()
        };
        let exact = OomKill {
            method: AttributionMethod::Exact,
            ..kill()
        };
        let exiting = OomKill {
            was_exiting: true,
            ..kill()
        };
        for known in [by_limit, exact, exiting] {
            assert_eq!(derive(&known, NODE), None, "{known:?}");
        }
    }
}
