//! Pressure stall information (Documentation/accounting/psi.rst): the share of time in which tasks
//! wait for a resource, of the node (`/proc/pressure`) or of one cgroup (`memory.pressure`).
//!
//! Parsed here and not with `procfs`, whose parser slices past the end of a short line and has no
//! form for the files of older kernels that lack the `full` line.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::eviction::{StallSource, StallTotals};
use super::text::{ParseError, number};
use crate::units::Micros;

/// Hundredths of a percent of wall time, 0..=10000: the precision that the kernel prints.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct StallShare(pub u32);

impl StallShare {
    /// 0.0..=1.0, the unit of metrics.
    pub fn as_ratio(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }
}

impl fmt::Display for StallShare {
    /// In percent, as the kernel prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

impl FromStr for StallShare {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParseError::invalid(text, "a percentage with two decimals");
        let (whole, hundredths) = text.split_once('.').ok_or_else(invalid)?;
        if hundredths.len() != 2 || !hundredths.bytes().all(|it| it.is_ascii_digit()) {
            return Err(invalid());
        }
        let whole: u32 = number(whole, "a percentage")?;
        let hundredths: u32 = number(hundredths, "hundredths of a percent")?;
        whole
            .checked_mul(100)
            .and_then(|it| it.checked_add(hundredths))
            .map(Self)
            .ok_or_else(invalid)
    }
}

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PsiLine {
    /// Running averages over 10, 60 and 300 seconds, brought up to date every 2 s.
    pub avg10: StallShare,
    pub avg60: StallShare,
    pub avg300: StallShare,
    /// Stalled time since boot or since the cgroup was made; exact at the time of reading.
    pub total: Micros,
}

impl FromStr for PsiLine {
    type Err = ParseError;

    /// The part after `some` or `full`; fields it does not know are passed over.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let field = |key: &str| {
            text.split_whitespace()
                .find_map(|it| it.split_once('=').filter(|(k, _)| *k == key))
                .map(|(_, value)| value)
                .ok_or_else(|| ParseError::missing(key))
        };
        Ok(Self {
            avg10: field("avg10")?.parse()?,
            avg60: field("avg60")?.parse()?,
            avg300: field("avg300")?.parse()?,
            total: Micros(number(field("total")?, "microseconds")?),
        })
    }
}

/// One pressure file: the stalls of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Psi {
    /// At least one task waited.
    pub some: PsiLine,
    /// Every task that was not idle waited. `None`: not kept (CPU before Linux 5.13); always 0 for
    /// the CPU of the whole node.
    pub full: Option<PsiLine>,
}

impl Psi {
    pub fn totals(&self) -> StallTotals {
        StallTotals {
            source: StallSource::Psi,
            some_us: self.some.total.0,
            full_us: self.full.map(|it| it.total.0),
        }
    }
}

impl FromStr for Psi {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let line = |kind: &str| {
            text.lines()
                .find_map(|it| it.strip_prefix(kind)?.strip_prefix(' '))
                .map(PsiLine::from_str)
                .transpose()
        };
        Ok(Self {
            some: line("some")?.ok_or_else(|| ParseError::missing("some"))?,
            full: line("full")?,
        })
    }
}

/// The stalls of the node or of one cgroup. `None`: the kernel does not account them there (PSI
/// built out or off, `cgroup.pressure` 0, cgroup v1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stalls {
    pub cpu: Option<Psi>,
    pub memory: Option<Psi>,
    pub io: Option<Psi>,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;

    const MEMORY: &str = "some avg10=46.27 avg60=0.92 avg300=0.00 total=268678529\n\
                          full avg10=2.10 avg60=100.00 avg300=0.01 total=18446744073709551615\n";

    #[test]
    fn both_lines_are_read_with_their_units() {
        let psi: Psi = MEMORY.parse().unwrap();
        assert_eq!(psi.some.avg10, StallShare(4627));
        assert_eq!(psi.some.total, Micros(268_678_529));
        let full = psi.full.unwrap();
        assert_eq!(full.avg60, StallShare(10_000));
        assert_eq!(full.avg300, StallShare(1));
        assert_eq!(full.total, Micros(u64::MAX));
        assert_eq!(full.avg60.to_string(), "100.00");
        assert!((psi.some.avg10.as_ratio() - 0.4627).abs() < 1e-9);
    }

    #[test]
    fn cpu_of_an_older_kernel_has_no_full_line() {
        let psi: Psi = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
            .parse()
            .unwrap();
        assert_eq!(psi.full, None);
    }

    #[test]
    fn hostile_texts_are_refused() {
        for text in [
            "",
            "some",
            "full",
            "some€ avg10=0.00",
            "some avg10=0.00 avg60=0.00 avg300=0.00",
            "some avg10=0.00 avg60=0.00 total=1",
            "some avg10=1 avg60=0.00 avg300=0.00 total=1",
            "some avg10=1.234 avg60=0.00 avg300=0.00 total=1",
            "some avg10=NaN avg60=0.00 avg300=0.00 total=1",
            "some avg10=-1.00 avg60=0.00 avg300=0.00 total=1",
            "some avg10=4294967295.99 avg60=0.00 avg300=0.00 total=1",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=-1",
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=1",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=",
        ] {
            assert!(text.parse::<Psi>().is_err(), "{text:?} was taken");
        }
    }
}
