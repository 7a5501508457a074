//! The memory of the node as `/proc/meminfo` and `/proc/zoneinfo` have it.

use super::eviction::MemoryUse;
use super::text::{ParseError, number};

/// The fields of `/proc/meminfo` that decisions use, bytes. `None`: the file does not have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    pub total: u64,
    pub free: Option<u64>,
    pub available: Option<u64>,
    pub swap_total: Option<u64>,
    pub swap_free: Option<u64>,
    /// All huge page pools, used or not (Linux 4.19); `None`: the kernel has no huge pages.
    pub hugetlb: Option<u64>,
    pub slab_reclaimable: Option<u64>,
    buffers: Option<u64>,
    cached: Option<u64>,
    swap_cached: Option<u64>,
    anon: Option<u64>,
    active_file: Option<u64>,
    inactive_file: Option<u64>,
    shmem: Option<u64>,
    dirty: Option<u64>,
    writeback: Option<u64>,
}

impl Meminfo {
    /// In one pass, without an allocation. Only `MemTotal` has to be there.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut info = Self::default();
        let mut total = None;
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let field = match key {
                "MemTotal" => &mut total,
                "MemFree" => &mut info.free,
                "MemAvailable" => &mut info.available,
                "Buffers" => &mut info.buffers,
                "Cached" => &mut info.cached,
                "SwapCached" => &mut info.swap_cached,
                "Active(file)" => &mut info.active_file,
                "Inactive(file)" => &mut info.inactive_file,
                "SwapTotal" => &mut info.swap_total,
                "SwapFree" => &mut info.swap_free,
                "Dirty" => &mut info.dirty,
                "Writeback" => &mut info.writeback,
                "AnonPages" => &mut info.anon,
                "Shmem" => &mut info.shmem,
                "SReclaimable" => &mut info.slab_reclaimable,
                "Hugetlb" => &mut info.hugetlb,
                _ => continue,
            };
            let kilobytes: u64 = number(
                value.trim().strip_suffix("kB").unwrap_or(value),
                "a number of kB",
            )?;
            *field = Some(kilobytes.saturating_mul(1024));
        }
        info.total = total.ok_or_else(|| ParseError::missing("MemTotal"))?;
        Ok(info)
    }

    /// The use of the whole node from the counters of its zones: those that the root cgroup's
    /// `memory.stat` sums up from all cgroups, at a fraction of the cost. Without refaults.
    pub fn memory_use(&self) -> Option<MemoryUse> {
        let anon = self.anon?;
        // NR_FILE_PAGES, which meminfo shows in three parts (fs/proc/meminfo.c, Linux 6.18).
        let file = [self.cached?, self.buffers?, self.swap_cached.unwrap_or(0)]
            .into_iter()
            .fold(0, u64::saturating_add);
        Some(MemoryUse {
            usage: anon.saturating_add(file),
            anon,
            file,
            inactive_file: self.inactive_file?,
            active_file: self.active_file?,
            shmem: self.shmem?,
            dirty: self.dirty?.saturating_add(self.writeback?),
            slab_reclaimable: self.slab_reclaimable,
            refaults_file: None,
        })
    }
}

/// Sum of the low watermarks of all zones, in pages. `None`: the text has no zone.
pub fn low_watermark_pages(zoneinfo: &str) -> Option<u64> {
    let marks = zoneinfo
        .lines()
        .filter_map(|line| number::<u64>(line.trim_start().strip_prefix("low ")?, "pages").ok());
    marks.reduce(u64::saturating_add)
}

/// Free pages in the lists of all CPUs.
pub fn free_pages_of_cpus(zoneinfo: &str) -> u64 {
    let counts = zoneinfo
        .lines()
        .filter_map(|line| number::<u64>(line.trim_start().strip_prefix("count: ")?, "pages").ok());
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       16384 kB\nMemFree:         2048 kB\n\
        MemAvailable:    6000 kB\nBuffers:           10 kB\nCached:          4000 kB\n\
        SwapCached:         6 kB\nActive:          3000 kB\nActive(anon):       1 kB\n\
        Inactive(anon):     2 kB\nActive(file):    1000 kB\nInactive(file):  3000 kB\n\
        SwapFree:         500 kB\nDirty:             7 kB\nWriteback:         3 kB\n\
        AnonPages:       4096 kB\nShmem:             16 kB\nSReclaimable:    1024 kB\n\
        HugePages_Total:       2\nHugetlb:         4096 kB\n";

    #[test]
    fn use_of_the_node_is_told_by_its_zones() {
        let info = Meminfo::parse(MEMINFO).unwrap();
        assert_eq!((info.total, info.free), (16_384 << 10, Some(2048 << 10)));
        assert_eq!(
            (info.hugetlb, info.swap_free),
            (Some(4096 << 10), Some(500 << 10))
        );
        let found = info.memory_use().unwrap();
        assert_eq!(found.file, 4016 << 10);
        assert_eq!(found.usage, (4096 + 4016) << 10);
        assert_eq!(found.working_set(), (4096 + 1016) << 10);
        assert_eq!((found.active_file, found.dirty), (1000 << 10, 10 << 10));
    }

    #[test]
    fn free_pages_of_cpus_are_counted_over_zones() {
        let zones = "Node 0, zone    DMA32\n  pages free     699221\n        min      9046\n  pagesets\n    \
                     cpu: 0\n              count:    0\n              high:     0\n    cpu: 1\n              \
                     count:    16\nNode 0, zone   Normal\n      nr_free_pages 7\n  pagesets\n    cpu: 0\n\
                     \x20             count:    13930\n              high:     85211\n";
        assert_eq!(free_pages_of_cpus(zones), 13_946);
        assert_eq!(free_pages_of_cpus("Node 0, zone DMA\n"), 0);
    }

    #[test]
    fn a_field_that_is_not_there_is_not_zero() {
        let info = Meminfo::parse("MemTotal: 1 kB\nBuffers: 1 kB\n").unwrap();
        assert_eq!((info.free, info.hugetlb), (None, None));
        assert_eq!(info.memory_use(), None);
    }

    #[test]
    fn hostile_texts_are_refused_or_saturate() {
        for text in [
            "",
            "MemFree: 1 kB",
            "MemTotal: -1 kB",
            "MemTotal:",
            "MemTotal 1 kB",
        ] {
            assert!(Meminfo::parse(text).is_err(), "{text:?}");
        }
        let huge = MEMINFO.replace(" 4000 kB", " 18446744073709551615 kB");
        let huge = huge.replace(" 10 kB", " 18446744073709551615 kB");
        assert_eq!(
            Meminfo::parse(&huge).unwrap().memory_use().unwrap().usage,
            u64::MAX
        );
    }

    #[test]
    fn low_watermarks_of_all_zones_add_up() {
        let zoneinfo = "Node 0, zone      DMA\n  per-node stats\n      nr_slow 9\n  \
            pages free     3840\n        boost    0\n        min      16\n        \
            low      20\n        high     24\n  pagesets\n    cpu: 0\n              high: 4\n\
            Node 0, zone   Normal\n  pages free     99\n        low      15838\n";
        assert_eq!(low_watermark_pages(zoneinfo), Some(15_858));
        assert_eq!(low_watermark_pages("Node 0, zone DMA\n"), None);
        assert_eq!(
            low_watermark_pages("low 18446744073709551615\nlow 1\n"),
            Some(u64::MAX)
        );
    }
}
