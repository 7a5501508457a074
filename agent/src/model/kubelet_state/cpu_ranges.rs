//! A set of CPUs as kubelet reads one from a file: any ids, as long as they are written well.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::model::cpuset::{CpuId, CpuSet, CpuSetError, MAX_CPU};

/// Ranges of CPU ids, ascending, apart from each other by at least one id. Costs as much as its
/// text, not as much as its ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuRanges(Vec<RangeInclusive<u64>>);

/// Why a text is no set of CPUs to kubelet (k8s.io/utils, cpuset/cpuset.go: `Parse`).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuRangesError {
    #[error("{0:?} is neither a CPU nor a range of CPUs")]
    Syntax(String),
    #[error("invalid range {text:?} ({first} > {last})")]
    Backwards { text: String, first: u64, last: u64 },
}

impl CpuRanges {
    /// Number of CPUs.
    pub(super) fn len(&self) -> u64 {
        self.0.iter().fold(0, |sum: u64, range| {
            sum.saturating_add((range.end() - range.start()).saturating_add(1))
        })
    }

    /// The ids in ascending order.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        self.0.iter().cloned().flatten()
    }
}

impl FromStr for CpuRanges {
    type Err = CpuRangesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let ranges = text.split(',').map(range);
        let mut ranges = ranges.collect::<Result<Vec<_>, _>>()?;
        ranges.sort_unstable_by_key(|it| *it.start());
        let mut joined: Vec<RangeInclusive<u64>> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => joined.push(range),
            }
        }
        Ok(Self(joined))
    }
}

fn range(text: &str) -> Result<RangeInclusive<u64>, CpuRangesError> {
    let id = |text: &str| {
        // Go's integers are signed; a minus sign never gets here, it parts a range.
        let id = text
            .parse::<i64>()
            .ok()
            .and_then(|id| u64::try_from(id).ok());
        id.ok_or_else(|| CpuRangesError::Syntax(text.to_owned()))
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (id(first)?, id(last)?);
    if first > last {
        let text = text.to_owned();
        return Err(CpuRangesError::Backwards { text, first, last });
    }
    Ok(first..=last)
}

impl fmt::Display for CpuRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{}", range.start())?;
            if range.start() < range.end() {
                write!(f, "-{}", range.end())?;
            }
        }
        Ok(())
    }
}

impl From<&CpuSet> for CpuRanges {
    fn from(cpus: &CpuSet) -> Self {
        let text = cpus.to_string();
        text.parse().expect("a set of CPUs prints as one")
    }
}

impl TryFrom<&CpuRanges> for CpuSet {
    type Error = CpuSetError;

    fn try_from(ranges: &CpuRanges) -> Result<Self, Self::Error> {
        match ranges.0.last() {
            Some(last) if *last.end() > u64::from(MAX_CPU.0) => {
                Err(CpuSetError::TooLarge { cpu: *last.end() })
            }
            _ => Ok(ranges
                .ids()
                .filter_map(|id| u32::try_from(id).ok())
                .map(CpuId)
                .collect()),
        }
    }
}
