//! What a node has to give, before anything is reserved: the numbers behind `status.capacity`.
//!
//! `None` is a reading that could not be had; it is never 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::text::number;
use crate::units::Bytes;

/// Page size to number of pages in the pool (`nr_hugepages`).
pub type HugePages = BTreeMap<Bytes, u64>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCapacity {
    /// Online logical CPUs, 1 or more.
    pub n_cpus: u32,
    /// `MemTotal` of `/proc/meminfo`.
    pub memory: Bytes,
    /// `SwapTotal`; `None` where no swap area is in use.
    pub swap: Option<Bytes>,
    pub hugepages: HugePages,
    /// Memory in huge pages that were given back while somebody held them: beyond the pools, and not free yet.
    #[serde(default)]
    pub held_hugepages: Bytes,
    /// How many tasks can exist: the lesser of `pid_max` and `threads-max`.
    pub pids: Option<u64>,
    /// Size of the filesystem of the state directory, used or not.
    pub ephemeral_storage: Option<Bytes>,
}

impl NodeCapacity {
    /// Memory in the huge page pools, which no ordinary allocation can use.
    pub fn hugepage_memory(&self) -> Bytes {
        let total = self
            .hugepages
            .iter()
            .map(|(size, n)| size.0.saturating_mul(*n))
            .fold(0, u64::saturating_add);
        Bytes(total)
    }
}

/// Which node this is and what it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeIdentity {
    /// `/proc/sys/kernel/random/boot_id`: another one after every boot.
    pub boot_id: Option<String>,
    /// As `uname -r`.
    pub kernel_release: String,
    pub page_size: Bytes,
}

/// Whether `/proc/swaps` lists an area: kubelet's test, more than one line.
pub fn is_swap_on(swaps: &str) -> bool {
    swaps.trim().lines().count() > 1
}

/// The number of tasks out of `pid_max` and `threads-max`: the least that parses.
pub fn max_pids(pid_max: Option<&str>, threads_max: Option<&str>) -> Option<u64> {
    [pid_max, threads_max]
        .into_iter()
        .flatten()
        .filter_map(|it| number(it, "a number of tasks").ok())
        .min()
}

/// Tasks that exist now: the second half of the fourth field of `/proc/loadavg`.
pub fn running_pids(loadavg: &str) -> Option<u64> {
    let (_, all) = loadavg.split_whitespace().nth(3)?.split_once('/')?;
    number(all, "a number of tasks").ok()
}

/// The page size of a directory name below `/sys/kernel/mm/hugepages`: `hugepages-2048kB`.
pub fn hugepage_size(directory: &str) -> Option<Bytes> {
    let kilobytes: u64 = directory
        .strip_prefix("hugepages-")?
        .strip_suffix("kB")?
        .parse()
        .ok()?;
    kilobytes.checked_mul(1024).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_on_when_a_line_follows_the_head() {
        let head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!is_swap_on(""));
        assert!(!is_swap_on(head));
        assert!(!is_swap_on(&format!("{head}\n")));
        assert!(is_swap_on(&format!("{head}/dev/sda2 partition 8 0 -2\n")));
    }

    #[test]
    fn the_lesser_limit_of_tasks_counts() {
        for (pid_max, threads_max, expected) in [
            (Some("32768\n"), Some("192730\n"), Some(32_768)),
            (Some("4194304"), Some("100"), Some(100)),
            (Some("many"), Some("100"), Some(100)),
            (None, Some("7"), Some(7)),
            (None, None, None),
            (Some(""), Some("-1"), None),
        ] {
            assert_eq!(max_pids(pid_max, threads_max), expected);
        }
    }

    #[test]
    fn tasks_are_counted_from_loadavg() {
        assert_eq!(running_pids("2.84 2.34 1.39 4/126 3591\n"), Some(126));
        assert_eq!(running_pids("2.84 2.34 1.39 4\n"), None);
        assert_eq!(running_pids(""), None);
    }

    #[test]
    fn page_sizes_come_from_directory_names() {
        for (name, expected) in [
            ("hugepages-2048kB", Some(2 << 20)),
            ("hugepages-1048576kB", Some(1 << 30)),
            ("hugepages-64kB", Some(64 << 10)),
            ("hugepages-kB", None),
            ("hugepages-2048", None),
            ("hugepages-18446744073709551615kB", None),
        ] {
            assert_eq!(hugepage_size(name), expected.map(Bytes), "{name}");
        }
    }

    #[test]
    fn memory_of_the_pools_never_wraps() {
        let capacity = NodeCapacity {
            n_cpus: 1,
            memory: Bytes(1),
            swap: None,
            hugepages: HugePages::from([(Bytes(2 << 20), 3), (Bytes(1 << 30), u64::MAX)]),
            held_hugepages: Bytes(0),
            pids: None,
            ephemeral_storage: None,
        };
        assert_eq!(capacity.hugepage_memory(), Bytes(u64::MAX));
    }
}
