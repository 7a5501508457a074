//! What the status document shows of usage: of the last sweep, with rates since one before it.

use std::sync::Arc;

use super::sweep::Readings;
use crate::model::record::PodRef;
use crate::model::stats::{CgroupStats, GroupKind, PodStats, StatsSnapshot};
use crate::model::status::Usage;
use crate::units::{Bytes, MilliCpu};

/// See the module.
pub(super) struct Usages {
    now: Option<Arc<StatsSnapshot>>,
    before: Option<Arc<StatsSnapshot>>,
}

impl Usages {
    pub(super) fn of(readings: &Readings) -> Self {
        Self {
            now: readings.stats(),
            before: readings.stats_before(),
        }
    }

    /// Nothing is known of a pod that is newer than the last sweep.
    pub(super) fn pod(&self, pod: &PodRef) -> Usage {
        let stats = |it: &Option<Arc<StatsSnapshot>>| find(it, pod)?.stats.clone();
        usage(stats(&self.now).as_ref(), stats(&self.before).as_ref())
    }

    pub(super) fn container(&self, pod: &PodRef, runtime_id: &str) -> Usage {
        let stats = |it: &Option<Arc<StatsSnapshot>>| {
            let mut containers = find(it, pod)?.containers.iter();
            let found = containers.find(|it| it.runtime_id == runtime_id)?;
            Some(found.stats.clone())
        };
        usage(stats(&self.now).as_ref(), stats(&self.before).as_ref())
    }

    /// CPU time that all pods together take.
    pub(super) fn kubepods_cpu(&self) -> Option<MilliCpu> {
        let stats = |it: &Option<Arc<StatsSnapshot>>| {
            let mut groups = it.as_ref()?.groups.iter();
            let found = groups.find(|it| it.kind == GroupKind::Kubepods)?;
            Some(found.stats.clone())
        };
        rate(&stats(&self.now)?, &stats(&self.before)?)
    }
}

fn find<'a>(snapshot: &'a Option<Arc<StatsSnapshot>>, pod: &PodRef) -> Option<&'a PodStats> {
    let pods = &snapshot.as_ref()?.pods;
    let index = pods.binary_search_by(|it| (*it.pod).cmp(pod)).ok()?;
    Some(&pods[index])
}

fn usage(now: Option<&CgroupStats>, before: Option<&CgroupStats>) -> Usage {
    let Some(now) = now else {
        return Usage::default();
    };
    Usage {
        memory_bytes: now.memory.usage.map(Bytes),
        cpu_ns: now.cpu.usage_ns,
        cpu_milli: before.and_then(|it| rate(now, it)),
        pids: now.n_tasks,
    }
}

/// Rounded down; `None`: the cgroup is a new one of that name, or no time has passed.
fn rate(now: &CgroupStats, before: &CgroupStats) -> Option<MilliCpu> {
    if now.cgroup_id != before.cgroup_id {
        return None;
    }
    let used = now.cpu.usage_ns?.checked_sub(before.cpu.usage_ns?)?;
    let span = now.at.checked_sub(before.at)?.as_nanos();
    let milli = (u128::from(used) * 1000).checked_div(span)?;
    u64::try_from(milli).ok().map(MilliCpu)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::event::CgroupId;

    fn stats(cgroup: u64, seconds: u64, usage_ns: u64) -> CgroupStats {
        let mut stats = CgroupStats {
            at: Duration::from_secs(seconds),
            cgroup_id: Some(CgroupId(cgroup)),
            ..CgroupStats::default()
        };
        stats.cpu.usage_ns = Some(usage_ns);
        stats
    }

    #[test]
    fn a_rate_needs_two_readings_of_one_cgroup() {
        let first = stats(1, 100, 5_000_000_000);
        assert_eq!(usage(Some(&first), None).cpu_milli, None);
        for (cgroup, total_ns, seconds, expected) in [
            (1, 6_500_000_000, 1, Some(1500)),
            (1, 6_500_000_000, 3, Some(500)),
            (1, 5_000_000_000, 1, Some(0)),
            (1, 5_000_999_999, 1, Some(0)),
            // A new cgroup of the same name.
            (2, 6_500_000_000, 1, None),
            (1, 4_999_999_999, 1, None),
            // The same moment.
            (1, 6_000_000_000, 0, None),
        ] {
            let now = stats(cgroup, 100 + seconds, total_ns);
            let found = usage(Some(&now), Some(&first));
            let rate = found.cpu_milli.map(|MilliCpu(milli)| milli);
            assert_eq!(rate, expected, "{total_ns} ns after {seconds} s");
            assert_eq!(found.cpu_ns, Some(total_ns));
        }
    }
}
