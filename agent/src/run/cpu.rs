//! CPU time of cgroups between two documents.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::cgroup_name::CgroupName;
use crate::sources::cgroupfs::CgroupReader;
use crate::units::MilliCpu;

/// A rate over a shorter time says little, and documents may follow each other within 50 ms.
const MIN_SPAN: Duration = Duration::from_secs(1);

/// One reading, with the rate since the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuReading {
    at: Duration,
    pub total_ns: u64,
    /// `None` at the first reading.
    pub rate: Option<MilliCpu>,
}

impl CpuReading {
    fn after(before: Option<&Self>, total_ns: u64, at: Duration) -> Self {
        Self {
            at,
            total_ns,
            rate: before.and_then(|it| rate(it, total_ns, at)),
        }
    }
}

/// Rounded down; `None` when the counter went down: the cgroup is a new one of that name.
fn rate(before: &CpuReading, total_ns: u64, at: Duration) -> Option<MilliCpu> {
    let used = u128::from(total_ns.checked_sub(before.total_ns)?);
    let span = at.checked_sub(before.at)?.as_nanos();
    let milli = (used * 1000).checked_div(span)?;
    u64::try_from(milli).ok().map(MilliCpu)
}

/// The newest reading of each cgroup.
#[derive(Debug, Default)]
pub(super) struct CpuUsage {
    readings: BTreeMap<CgroupName, CpuReading>,
}

impl CpuUsage {
    /// Reads the cgroups of `names` that were not read for a second, one file each, and forgets
    /// all others.
    pub(super) fn measure(
        &mut self,
        names: impl IntoIterator<Item = CgroupName>,
        reader: &CgroupReader,
        now: Duration,
    ) {
        let before = std::mem::take(&mut self.readings);
        for name in names {
            let last = before.get(&name);
            let reading = match last {
                Some(last) if now < last.at + MIN_SPAN => Some(*last),
                // Gone or not readable is not measured.
                last => match reader.cpu_usage_ns(&name) {
                    Ok(Some(total_ns)) => Some(CpuReading::after(last, total_ns, now)),
                    Ok(None) | Err(_) => None,
                },
            };
            if let Some(reading) = reading {
                self.readings.insert(name, reading);
            }
        }
    }

    pub(super) fn of(&self, name: &CgroupName) -> Option<CpuReading> {
        self.readings.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_readings_of_one_cgroup() {
        let at = Duration::from_secs;
        let first = CpuReading::after(None, 5_000_000_000, at(100));
        assert_eq!(first.rate, None);
        for (total_ns, seconds, expected) in [
            (6_500_000_000, 1, Some(1500)),
            (6_500_000_000, 3, Some(500)),
            (5_000_000_000, 1, Some(0)),
            (5_000_999_999, 1, Some(0)),
            // A new cgroup of the same name.
            (4_999_999_999, 1, None),
            // The same moment.
            (6_000_000_000, 0, None),
        ] {
            let reading = CpuReading::after(Some(&first), total_ns, at(100 + seconds));
            let rate = reading.rate.map(|MilliCpu(milli)| milli);
            assert_eq!(rate, expected, "{total_ns} ns after {seconds} s");
        }
    }
}
