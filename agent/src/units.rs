//! Amounts with their unit in the type, and the one place where units are converted and rounded.
//!
//! Invariant: integer arithmetic only, no IO, no clock.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Memory or storage, in bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// CPU time per time, in thousandths of one CPU.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MilliCpu(pub u64);

/// A span of time in microseconds, the unit of the kernel's CPU bandwidth files.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Micros(pub u64);

/// An upper bound that may be absent. The kernel writes the absence as `max` (v2) or as a huge
/// number (v1); neither ever stands in a number here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Limit {
    /// Bounded; the unit is that of the file or field that carries the limit.
    At(u64),
    /// No bound.
    Max,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(n) => write!(f, "{n}"),
            Self::Max => f.write_str("max"),
        }
    }
}
