//! Why the kernel killed where no hook could read its reason: whether the node ran out of memory, told by
//! what else is known at the moment of the kill.
//!
//! On what is not known nothing is derived: the limit stays unknown.

use crate::model::event::{AttributionMethod, OomConstraint, OomKill};

/// What was seen around a kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The program looks for a limit that is reached, from the allocating task upwards. Where it found
    /// none, no memory cgroup was the reason.
    pub looks_for_limits: bool,
    /// Since a second before at most, tasks had to free memory of the node by themselves (`allocstall`
    /// of /proc/vmstat): nobody is killed for the node without that, and for a limit with it only by
    /// chance. `None`: not known.
    pub has_stalled: Option<bool>,
    /// The allocating task may use a part of the NUMA nodes alone. `None`: not known.
    pub is_confined: Option<bool>,
}

/// The reason of a kill of which the programs know none. A memory policy is not told from the node.
pub fn derive(kill: &OomKill, evidence: Evidence) -> Option<OomConstraint> {
    if !is_unknown(kill) || !evidence.looks_for_limits || evidence.has_stalled != Some(true) {
        return None;
    }
    match evidence.is_confined? {
        true => Some(OomConstraint::Cpuset),
        false => Some(OomConstraint::Global),
    }
}

/// No program knows why.
pub fn is_unknown(kill: &OomKill) -> bool {
    !kill.was_exiting
        && kill.method == AttributionMethod::None
        && kill.constraint.is_none()
        && kill.limit_cgroup.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::oom_kill;
    use crate::model::event::CgroupId;

    const NODE: Evidence = Evidence {
        looks_for_limits: true,
        has_stalled: Some(true),
        is_confined: Some(false),
    };

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
        assert_eq!(derive(&kill(), NODE), Some(OomConstraint::Global));
        assert_eq!(derive(&kill(), confined), Some(OomConstraint::Cpuset));
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
            assert_eq!(derive(&kill(), evidence), None, "{evidence:?}");
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
