//! Whether an evicted pod begins anew. Kubelet leaves that to controllers, which make another pod;
//! a manifest has none, so that a pod that is to run always would be gone for good.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::Compat;
use crate::model::eviction::{Eviction, EvictionCause, NodeCondition};
use crate::model::pod::RestartPolicy;

/// Least time between the end of one instance and the beginning of the next, whatever the period.
const LEAST_WAIT: Duration = Duration::from_secs(10);

/// `conditions` are those that the node has now; one that is over is among them for `period`, the
/// `evictionPressureTransitionPeriod`. `now` is boottime, like the time of the eviction.
pub fn is_to_return(
    restart_policy: RestartPolicy,
    eviction: &Eviction,
    conditions: &BTreeSet<NodeCondition>,
    period: Duration,
    compat: Compat,
    now: Duration,
) -> bool {
    let condition = match &eviction.victim.cause {
        EvictionCause::Threshold { threshold, .. } => Some(threshold.signal.condition()),
        EvictionCause::Stall => Some(NodeCondition::MemoryPressure),
        // Of the pod's own making: the node was not short.
        EvictionCause::LocalStorage { .. } => None,
        // When there is room for it, as one that was refused.
        EvictionCause::Preemption { .. } => return false,
    };
    compat == Compat::Ballast
        && restart_policy == RestartPolicy::Always
        && condition.is_none_or(|it| !conditions.contains(&it))
        && now.saturating_sub(eviction.at) >= period.max(LEAST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::eviction::{self, Signal, StorageLimit, Victim};
    use crate::model::pod::PodUid;
    use crate::model::record::PodRef;

    const MINUTE: Duration = Duration::from_secs(60);

    fn eviction(cause: EvictionCause) -> Eviction {
        Eviction {
            victim: Victim {
                pod: PodRef {
                    namespace: "default".to_owned(),
                    name: "pod".to_owned(),
                    uid: PodUid("uid".to_owned()),
                },
                cause,
                grace: Duration::ZERO,
                message: String::new(),
                expected: None,
            },
            at: 10 * MINUTE,
            conditions: BTreeSet::new(),
        }
    }

    fn by(signal: Signal) -> Eviction {
        eviction(eviction::tests::by(signal))
    }

    #[test]
    fn it_returns_when_its_condition_has_been_over_for_the_period() {
        let (memory, disk) = (NodeCondition::MemoryPressure, NodeCondition::DiskPressure);
        let limit = StorageLimit::Pod;
        let own = eviction(EvictionCause::LocalStorage { limit });
        let stall = eviction(EvictionCause::Stall);
        let of_memory = by(Signal::MemoryAvailable);
        for (what, conditions, seconds, expected) in [
            (&of_memory, vec![], 300, true),
            (&of_memory, vec![], 299, false),
            (&of_memory, vec![memory], 3000, false),
            (&of_memory, vec![disk], 300, true),
            (&by(Signal::NodeFsInodesFree), vec![disk], 300, false),
            (&stall, vec![memory], 300, false),
            (&stall, vec![], 300, true),
            (&own, vec![memory, disk], 300, true),
            (&own, vec![], 299, false),
        ] {
            let is = |policy, compat, period| {
                let now = what.at + Duration::from_secs(seconds);
                let conditions = conditions.iter().copied().collect();
                is_to_return(policy, what, &conditions, period, compat, now)
            };
            let (always, ours) = (RestartPolicy::Always, Compat::Ballast);
            assert_eq!(is(always, ours, 5 * MINUTE), expected, "{what:?} {seconds}");
            assert!(!is(RestartPolicy::OnFailure, ours, 5 * MINUTE));
            assert!(!is(RestartPolicy::Never, ours, 5 * MINUTE));
            assert!(!is(always, Compat::Kubelet, 5 * MINUTE));
        }
        let soon = of_memory.at + Duration::from_secs(9);
        let always = RestartPolicy::Always;
        let is = |now| {
            let none = BTreeSet::new();
            is_to_return(
                always,
                &of_memory,
                &none,
                Duration::ZERO,
                Compat::Ballast,
                now,
            )
        };
        assert!(!is(soon) && is(soon + Duration::from_secs(1)));
    }
}
