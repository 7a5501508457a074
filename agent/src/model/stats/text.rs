//! The texts of the kernel that only statistics are made of.
//!
//! As in `model::cgroup_files`: what a kernel does not print is left out, and what is printed and is
//! no number is an error.

use super::{
    DeviceIo, DeviceNumber, DiskCounts, DiskStats, InterfaceStats, IoCost, IoCounts, NumaPages,
    TrafficCounts,
};
use crate::model::kernel::NS_PER_TICK;
use crate::model::text::{ParseError, flat_keyed, limit, number};

/// `cpuacct.stat` of v1: time in user space and in the kernel, nanoseconds.
pub fn parse_cpuacct_stat(text: &str) -> Result<(Option<u64>, Option<u64>), ParseError> {
    let (mut user, mut system) = (None, None);
    for (key, value) in flat_keyed(text) {
        let field = match key {
            "user" => &mut user,
            "system" => &mut system,
            _ => continue,
        };
        let ticks: u64 = number(value, "clock ticks")?;
        *field = Some(ticks.saturating_mul(NS_PER_TICK));
    }
    Ok((user, system))
}

/// `max` of `pids.events`: forks that were refused.
pub fn parse_fork_refusals(text: &str) -> Result<Option<u64>, ParseError> {
    let found = flat_keyed(text).find(|(key, _)| *key == "max");
    found
        .map(|(_, value)| number(value, "a number"))
        .transpose()
}

impl DeviceNumber {
    fn parse(text: &str) -> Result<Self, ParseError> {
        let (major, minor) = text
            .split_once(':')
            .ok_or_else(|| ParseError::invalid(text, "major:minor"))?;
        Ok(Self {
            major: number(major, "a major device number")?,
            minor: number(minor, "a minor device number")?,
        })
    }
}

/// In place of the number of a device that is gone, or is one path of several (`bdi_dev_name`, mm/backing-dev.c).
const NO_DEVICE: &str = "(unknown)";

/// `io.stat` of v2; a device that has seen no traffic has no numbers, and one that has not all of them is left out. Linux
/// 5.15 and 5.16 do not end its line (`blkcg_print_one_stat`, block/blk-cgroup.c), so numbers are of the last device in
/// front of them.
pub fn parse_io_stat(text: &str) -> Result<Vec<DeviceIo>, ParseError> {
    let mut all = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(mut device) = words.next() else {
            continue;
        };
        let mut counts: [Option<u64>; 4] = [None; 4];
        let mut cost = IoCost::default();
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                if counts == [None; 4] && (word == NO_DEVICE || DeviceNumber::parse(word).is_ok()) {
                    device = word;
                }
                continue;
            };
            let field = match key {
                "rbytes" => &mut counts[0],
                "rios" => &mut counts[1],
                "wbytes" => &mut counts[2],
                "wios" => &mut counts[3],
                _ => {
                    if let Some(field) = cost.field(key) {
                        *field = Some(number(value, "microseconds")?);
                    }
                    continue;
                }
            };
            *field = Some(number(value, "a number")?);
        }
        if let [Some(read), Some(reads), Some(written), Some(writes)] = counts
            && device != NO_DEVICE
        {
            let of = |bytes, operations| IoCounts { bytes, operations };
            all.push(DeviceIo {
                number: DeviceNumber::parse(device)?,
                name: None,
                read: of(read, reads),
                written: of(written, writes),
                cost,
                by_operation: None,
            });
        }
    }
    all.sort_by_key(|it| it.number);
    Ok(all)
}

impl IoCost {
    /// The field that a key of `io.stat` tells.
    fn field(&mut self, key: &str) -> Option<&mut Option<u64>> {
        match key {
            "cost.usage" => Some(&mut self.usage_us),
            "cost.wait" => Some(&mut self.wait_us),
            "cost.indebt" => Some(&mut self.in_debt_us),
            "cost.indelay" => Some(&mut self.in_delay_us),
            _ => None,
        }
    }
}

/// `blkio.throttle.io_service_bytes` and `blkio.throttle.io_serviced` of v1, or the same with
/// `_recursive`: bytes and operations by device.
pub fn parse_blkio(bytes: &str, operations: &str) -> Result<Vec<DeviceIo>, ParseError> {
    let mut all: Vec<DeviceIo> = Vec::new();
    for line in blkio_lines(bytes) {
        let (number, operation, n) = line?;
        let device = device_of(&mut all, number);
        let others = device.by_operation.get_or_insert_default();
        match operation {
            "Read" => device.read.bytes = n,
            "Write" => device.written.bytes = n,
            "Sync" => others.synchronous = n,
            "Async" => others.asynchronous = n,
            "Discard" => others.discarded = n,
            "Total" => others.total = n,
            _ => {}
        }
    }
    for line in blkio_lines(operations) {
        let (number, operation, n) = line?;
        let device = device_of(&mut all, number);
        match operation {
            "Read" => device.read.operations = n,
            "Write" => device.written.operations = n,
            _ => {}
        }
    }
    Ok(all)
}

/// Device, operation and count, without the last line: the total of all devices.
fn blkio_lines(text: &str) -> impl Iterator<Item = Result<(DeviceNumber, &str, u64), ParseError>> {
    text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let device = words.next().filter(|it| *it != NO_DEVICE)?;
        let (operation, value) = (words.next()?, words.next()?);
        let parsed = DeviceNumber::parse(device)
            .and_then(|device| Ok((device, operation, number(value, "a number")?)));
        Some(parsed)
    })
}

fn device_of(all: &mut Vec<DeviceIo>, number: DeviceNumber) -> &mut DeviceIo {
    let new = || DeviceIo {
        number,
        ..DeviceIo::default()
    };
    found_or(all, &number, |it| it.number, new)
}

/// The one with this key, or a new one at its place. They stand in the order of their keys.
fn found_or<'a, T, K: Ord>(
    all: &'a mut Vec<T>,
    key: &K,
    key_of: fn(&T) -> K,
    new: impl FnOnce() -> T,
) -> &'a mut T {
    let found = all.binary_search_by_key(key, key_of);
    let index = found.unwrap_or_else(|index| {
        all.insert(index, new());
        index
    });
    &mut all[index]
}

/// `memory.numa_stat`, with all that is below the cgroup: v2 prints bytes, v1 pages. `page_size` in
/// bytes, 1 or more.
pub fn parse_numa_stat(
    text: &str,
    is_unified: bool,
    page_size: u64,
) -> Result<Vec<NumaPages>, ParseError> {
    let mut all: Vec<NumaPages> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else {
            continue;
        };
        let key = match is_unified {
            true => Some(first),
            // `hierarchical_anon=7 N0=7`: the others leave out the cgroups below.
            false => first
                .split_once('=')
                .and_then(|(key, _)| key.strip_prefix("hierarchical_")),
        };
        let field: fn(&mut NumaPages) -> &mut u64 = match key {
            Some("anon") => |it| &mut it.anon,
            Some("file") => |it| &mut it.file,
            Some("unevictable") => |it| &mut it.unevictable,
            _ => continue,
        };
        for word in words {
            let Some((node, value)) = word.strip_prefix('N').and_then(|it| it.split_once('='))
            else {
                continue;
            };
            let node: u32 = number(node, "a NUMA node")?;
            let value: u64 = number(value, "a number")?;
            let new = || NumaPages {
                node,
                ..NumaPages::default()
            };
            let pages = found_or(&mut all, &node, |it| it.node, new);
            *field(pages) = match is_unified {
                true => value / page_size.max(1),
                false => value,
            };
        }
    }
    Ok(all)
}

/// `/proc/PID/net/dev`, in the order of the file; `is_wanted` chooses by name. No two have one name: those that are no
/// text, which whoever has a network of its own can give, look alike and are left out.
pub fn parse_net_dev(
    text: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<InterfaceStats>, ParseError> {
    let mut all = Vec::new();
    // The two lines of the heading have no colon.
    for line in text.lines() {
        let Some((name, counts)) = line.split_once(':') else {
            continue;
        };
        let name = name.trim_ascii();
        if name.contains(char::REPLACEMENT_CHARACTER) || !is_wanted(name) {
            continue;
        }
        // Bytes, packets, errors, dropped and four more; then the same of what was sent.
        let mut fields = [0; 12];
        let mut words = counts.split_ascii_whitespace();
        for field in &mut fields {
            let word = words
                .next()
                .ok_or_else(|| ParseError::invalid(line, "16 counters"))?;
            *field = number(word, "a counter")?;
        }
        let counts = |at: usize| TrafficCounts {
            bytes: fields[at],
            packets: fields[at + 1],
            errors: fields[at + 2],
            dropped: fields[at + 3],
        };
        all.push(InterfaceStats {
            name: name.to_owned(),
            received: counts(0),
            transmitted: counts(8),
        });
    }
    Ok(all)
}

/// `/proc/diskstats`; devices that have seen no traffic are left out.
pub fn parse_diskstats(text: &str) -> Result<Vec<DiskStats>, ParseError> {
    let mut all = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let mut word = || {
            words
                .next()
                .ok_or_else(|| ParseError::invalid(line, "a device and 11 counters"))
        };
        let device = DeviceNumber {
            major: number(word()?, "a major device number")?,
            minor: number(word()?, "a minor device number")?,
        };
        let name = word()?;
        let mut fields = [0; 11];
        for field in &mut fields {
            *field = number(word()?, "a counter")?;
        }
        let [
            reads,
            reads_merged,
            read_sectors,
            read_ms,
            writes,
            writes_merged,
            written_sectors,
            write_ms,
            n_in_flight,
            busy_ms,
            weighted_busy_ms,
        ] = fields;
        if reads == 0 && writes == 0 {
            continue;
        }
        all.push(DiskStats {
            name: name.to_owned(),
            number: device,
            reads: DiskCounts {
                completed: reads,
                merged: reads_merged,
                sectors: read_sectors,
                time_ms: read_ms,
            },
            writes: DiskCounts {
                completed: writes,
                merged: writes_merged,
                sectors: written_sectors,
                time_ms: write_ms,
            },
            n_in_flight,
            busy_ms,
            weighted_busy_ms,
        });
    }
    Ok(all)
}

/// The soft limit of open files in `/proc/PID/limits`; `u64::MAX`: unlimited.
pub fn parse_max_open_files(text: &str) -> Option<u64> {
    let [soft, _] = limit(text, "Max open files")?;
    match soft {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// A size of huge pages, bytes, as the kernel names it in `hugetlb.2MB.current` (`mem_fmt`,
/// mm/hugetlb_cgroup.c).
pub fn hugetlb_name(page_size: u64) -> String {
    match page_size {
        size if size >= 1 << 30 => format!("{}GB", size >> 30),
        size if size >= 1 << 20 => format!("{}MB", size >> 20),
        size => format!("{}KB", size >> 10),
    }
}

#[cfg(test)]
mod tests;
