//! How much memory of a pod could go without harm, and how long until a container is at its limit.
//!
//! Kubelet takes every active file page for memory in use; a pod that read a file twice is evicted
//! for it. Here an active file page is in use where there is evidence: it came back soon after it was
//! dropped, or the pod waits for memory.
//!
//! Invariant: without evidence of either kind no active page counts as free.

use std::time::Duration;

use super::trend::{Point, time_to_fall};
use crate::model::eviction::{MemoryUse, PodFigures, StallTotals};
use crate::model::stats::CgroupStats;

/// A pod that waits for memory more than this share of the time needs its cache. One tenth is
/// arbitrary: far above what reading a file for the first time costs, far below a pod that
/// thrashes.
const STALL_SHARE: u32 = 10;
/// What is further away changes before it comes.
const HORIZON: Duration = Duration::from_secs(3600);

/// What two looks at a pod say of its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheEvidence {
    /// File pages that were read again soon after they were dropped, bytes; `None`: not known.
    pub refaulted: Option<u64>,
    /// The pod waited for memory for a good part of the time; `None`: not known.
    pub is_stalled: Option<bool>,
}

/// Memory of a cgroup and what it waited, at one moment.
pub type Look = (Option<MemoryUse>, Option<StallTotals>);

impl CacheEvidence {
    /// `page_size` in bytes. `None`: the readings have no time, or not one after the other.
    pub fn between(before: &PodFigures, now: &PodFigures, page_size: u64) -> Option<Self> {
        let elapsed = now.at?.checked_sub(before.at?)?;
        let look = |it: &PodFigures| (it.memory, it.stall);
        Self::of_looks(look(before), look(now), elapsed, page_size)
    }

    /// Of two looks so far apart; `None` when no time has passed.
    pub fn of_looks(before: Look, now: Look, elapsed: Duration, page_size: u64) -> Option<Self> {
        if elapsed.is_zero() {
            return None;
        }
        let refaults = |(memory, _): Look| memory?.refaults_file;
        // A counter that fell is one of a new cgroup: what it says is not known.
        let refaulted = refaults(before)
            .zip(refaults(now))
            .and_then(|(before, now)| now.checked_sub(before))
            .map(|pages| pages.saturating_mul(page_size));
        let stalled = before
            .1
            .zip(now.1)
            .filter(|(before, now)| before.source == now.source)
            .and_then(|(before, now)| now.some_us.checked_sub(before.some_us));
        let is_stalled =
            stalled.map(|us| u128::from(us) * u128::from(STALL_SHARE) > elapsed.as_micros());
        Some(Self {
            refaulted,
            is_stalled,
        })
    }
}

/// What could be taken from a pod, or from the node, without harm, bytes: clean file pages that
/// nobody misses and half of the slab that can be freed, as the kernel counts it in `MemAvailable`
/// (`si_mem_available`, mm/show_mem.c, Linux 6.18): part of it is in use for as long as its files are.
///
/// Dirty pages have to be written first and do not count.
pub fn reclaimable(memory: &MemoryUse, evidence: Option<&CacheEvidence>) -> u64 {
    let unused_active = match evidence {
        Some(CacheEvidence {
            is_stalled: Some(true),
            ..
        })
        | Some(CacheEvidence {
            refaulted: None,
            is_stalled: None,
        })
        | None => 0,
        // Each page that came back stands for one that is in use.
        Some(it) => memory.active_file.saturating_sub(it.refaulted.unwrap_or(0)),
    };
    let file = memory.inactive_file.saturating_add(unused_active);
    let slab = memory.slab_reclaimable.unwrap_or(0) / 2;
    file.saturating_sub(memory.dirty)
        .saturating_add(slab)
        .min(memory.usage)
}

/// What two looks at a container say, as far as it can be said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerOutlook {
    /// As of [`reclaimable`].
    pub reclaimable: Option<u64>,
    /// At present growth; `None` too where it does not grow, has no limit, or is further from it
    /// than an hour.
    pub time_to_limit: Option<Duration>,
}

/// One look at a container.
#[derive(Clone, Copy, Debug)]
pub struct ContainerLook<'a> {
    pub stats: &'a CgroupStats,
    /// What it waited for memory, whoever counts it.
    pub stall: Option<StallTotals>,
}

/// `before`: the same container some seconds earlier; `page_size` in bytes. What one look cannot say
/// of a cgroup that was made since is not said.
pub fn outlook(
    before: Option<ContainerLook<'_>>,
    now: ContainerLook<'_>,
    page_size: u64,
) -> ContainerOutlook {
    let before = before.filter(|it| it.stats.cgroup_id == now.stats.cgroup_id);
    let evidence = before.and_then(|before| {
        let elapsed = now.stats.at.checked_sub(before.stats.at)?;
        let look = |it: ContainerLook<'_>| (it.stats.memory_use(), it.stall);
        CacheEvidence::of_looks(look(before), look(now), elapsed, page_size)
    });
    let memory = now.stats.memory_use();
    ContainerOutlook {
        reclaimable: memory.map(|it| reclaimable(&it, evidence.as_ref())),
        time_to_limit: before.and_then(|it| time_to_limit(it.stats, now.stats)),
    }
}

/// Growth is that of the working set: cache that fills a limit is dropped again, and hurts nobody.
fn time_to_limit(before: &CgroupStats, now: &CgroupStats) -> Option<Duration> {
    let limit = now.spec.memory_limit?;
    let room = |it: &CgroupStats| {
        let used = it.memory.working_set()?;
        Some(Point {
            at: it.at,
            value: i64::try_from(i128::from(limit) - i128::from(used)).ok()?,
        })
    };
    let now = room(now)?;
    time_to_fall(room(before)?, now, now.value).filter(|it| *it <= HORIZON)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cgroup_files::MemoryStat;
    use crate::model::event::CgroupId;
    use crate::model::eviction::StallSource;
    use crate::model::stats::{CgroupSpec, MemoryFigures};
    use crate::units::Bytes;

    const MIB: u64 = 1 << 20;
    const PAGE: u64 = 4096;

    /// 100 MiB anonymous, 40 MiB inactive and 60 MiB active file pages.
    fn memory() -> MemoryUse {
        MemoryUse {
            usage: 200 * MIB,
            anon: 100 * MIB,
            file: 100 * MIB,
            inactive_file: 40 * MIB,
            active_file: 60 * MIB,
            ..MemoryUse::default()
        }
    }

    fn figures(seconds: u64, refaults: Option<u64>, some_us: Option<u64>) -> PodFigures {
        PodFigures {
            at: Some(Duration::from_secs(seconds)),
            memory: Some(MemoryUse {
                refaults_file: refaults,
                ..memory()
            }),
            stall: some_us.map(|some_us| StallTotals {
                source: StallSource::Psi,
                some_us,
                full_us: None,
            }),
            ..PodFigures::default()
        }
    }

    #[track_caller]
    fn check(before: PodFigures, now: PodFigures, mebibytes: u64) {
        let evidence = CacheEvidence::between(&before, &now, PAGE);
        let memory = now.memory.unwrap_or_default();
        assert_eq!(reclaimable(&memory, evidence.as_ref()), mebibytes * MIB);
    }

    #[test]
    fn active_pages_count_where_evidence_frees_them() {
        // Nobody came back and nobody waits.
        check(
            figures(0, Some(7), Some(0)),
            figures(10, Some(7), Some(0)),
            100,
        );
        // One kind of evidence is enough.
        check(figures(0, Some(7), None), figures(10, Some(7), None), 100);
        check(figures(0, None, Some(0)), figures(10, None, Some(0)), 100);
        // None at all: kubelet's view.
        check(figures(0, None, None), figures(10, None, None), 40);
        check(
            figures(10, Some(7), Some(0)),
            figures(10, Some(7), Some(0)),
            40,
        );
        // A counter that ran backwards says nothing.
        check(figures(0, Some(9), None), figures(10, Some(7), None), 40);
    }

    #[test]
    fn what_comes_back_or_is_waited_for_is_in_use() {
        // 20 MiB came back in 4 KiB pages.
        check(figures(0, Some(0), None), figures(10, Some(5120), None), 80);
        check(
            figures(0, Some(0), None),
            figures(10, Some(1 << 30), None),
            40,
        );
        // More than a second of ten; exactly that is not more.
        check(
            figures(0, Some(0), Some(0)),
            figures(10, Some(0), Some(1_000_001)),
            40,
        );
        check(
            figures(0, Some(0), Some(0)),
            figures(10, Some(0), Some(1_000_000)),
            100,
        );
    }

    #[test]
    fn dirty_pages_and_half_of_the_slab_are_no_free_memory() {
        let memory = MemoryUse {
            dirty: 10 * MIB,
            slab_reclaimable: Some(8 * MIB),
            ..memory()
        };
        assert_eq!(reclaimable(&memory, None), 34 * MIB);
        // Figures that contradict each other stay within what the pod uses.
        let small = MemoryUse {
            usage: 3 * MIB,
            ..memory
        };
        assert_eq!(reclaimable(&small, None), 3 * MIB);
    }

    fn container(seconds: u64, mebibytes: u64) -> CgroupStats {
        let bytes = |mebibytes: u64| Some(Bytes(mebibytes * MIB));
        let mut stats = CgroupStats {
            at: Duration::from_secs(seconds),
            cgroup_id: Some(CgroupId(7)),
            ..CgroupStats::default()
        };
        stats.memory.usage = Some((mebibytes + 40) * MIB);
        stats.memory.stat = MemoryStat {
            anon: bytes(100),
            file: bytes(100),
            shmem: bytes(0),
            active_file: bytes(60),
            inactive_file: bytes(40),
            file_dirty: bytes(0),
            file_writeback: bytes(0),
            refaults_file: Some(0),
            ..MemoryStat::default()
        };
        stats.spec.memory_limit = Some(500 * MIB);
        stats
    }

    fn look(stats: &CgroupStats) -> ContainerLook<'_> {
        ContainerLook { stats, stall: None }
    }

    #[test]
    fn the_limit_is_reached_at_the_pace_of_the_working_set() {
        let time = |before: CgroupStats, now: CgroupStats| {
            outlook(Some(look(&before)), look(&now), PAGE).time_to_limit
        };
        let at = container;
        assert_eq!(time(at(0, 100), at(10, 200)), Some(Duration::from_secs(30)));
        // Over it already, as after a limit was lowered.
        assert_eq!(time(at(0, 500), at(10, 600)), Some(Duration::ZERO));
        assert_eq!(time(at(0, 200), at(10, 200)), None);
        // More than an hour away.
        assert_eq!(time(at(0, 100), at(1000, 101)), None);
        let unlimited = CgroupStats {
            spec: CgroupSpec::default(),
            ..at(10, 200)
        };
        assert_eq!(time(at(0, 100), unlimited), None);
    }

    #[test]
    fn a_container_that_was_made_anew_is_not_compared_with_the_one_before() {
        let (before, now) = (container(0, 100), container(10, 200));
        let both = outlook(Some(look(&before)), look(&now), PAGE);
        assert_eq!(both.reclaimable, Some(100 * MIB));
        let other = CgroupStats {
            cgroup_id: Some(CgroupId(8)),
            ..before.clone()
        };
        let alone = ContainerOutlook {
            reclaimable: Some(40 * MIB),
            time_to_limit: None,
        };
        assert_eq!(outlook(Some(look(&other)), look(&now), PAGE), alone);
        assert_eq!(outlook(None, look(&now), PAGE), alone);
        let unread = CgroupStats {
            memory: MemoryFigures::default(),
            ..now
        };
        let nothing = ContainerOutlook::default();
        assert_eq!(outlook(Some(look(&before)), look(&unread), PAGE), nothing);
    }
}
