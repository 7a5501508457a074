//! Where the memory of a process really is: `/proc/PID/numa_maps` (proc_pid_numa_maps(5)).

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};

/// Bytes of anonymous memory of a process by NUMA node. Pages of files are left out: they are where
/// the first reader of the file was.
pub fn anonymous_memory(pid: u32) -> Result<BTreeMap<u32, u64>> {
    let path = format!("/proc/{pid}/numa_maps");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    parse(&text).with_context(|| path)
}

fn parse(text: &str) -> Result<BTreeMap<u32, u64>> {
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for line in text.lines().filter(|it| !it.contains(" file=")) {
        let pairs = || line.split(' ').filter_map(|it| it.split_once('='));
        let page_kib: u64 = match pairs().find(|(key, _)| *key == "kernelpagesize_kB") {
            Some((_, kib)) => kib.parse().with_context(|| line.to_owned())?,
            // A mapping without a page.
            None => continue,
        };
        for (key, pages) in pairs() {
            if let Some(node) = key.strip_prefix('N').and_then(|it| it.parse().ok()) {
                let pages: u64 = pages.parse().with_context(|| line.to_owned())?;
                *bytes.entry(node).or_default() += pages * page_kib * 1024;
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_files_are_left_out_and_huge_pages_weigh_more() {
        let text = "\
55d0 default file=/bin/hog mapped=30 active=0 N0=30 kernelpagesize_kB=4
55d1 default file=/bin/hog anon=1 dirty=1 N0=1 kernelpagesize_kB=4
55d2 default heap anon=12 dirty=12 N0=2 N1=10 kernelpagesize_kB=4
7f00 bind:1 huge anon=1 dirty=1 N1=1 kernelpagesize_kB=2048
7f01 default
7ffc default stack anon=3 dirty=3 N1=3 kernelpagesize_kB=4
";
        let expected = BTreeMap::from([(0, 2 * 4096), (1, 13 * 4096 + (2 << 20))]);
        assert_eq!(parse(text).expect("it parses"), expected);
    }

    #[test]
    fn the_own_memory_is_somewhere() {
        let own = anonymous_memory(std::process::id()).expect("this kernel has NUMA");
        assert!(own.values().sum::<u64>() > 0);
    }
}
