//! Counts that go on when the agent starts again, by metric family.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What the sealed file says it holds, and its format.
pub const KIND: &str = "SavedCounts";
pub const VERSION: u32 = 1;

/// Families by name. A family that a reader does not know is passed over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SavedCounts(pub BTreeMap<String, Vec<SavedSeries>>);

/// One series of a family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedSeries {
    pub labels: BTreeMap<String, String>,
    /// A count, or seconds since the Unix epoch.
    pub value: f64,
}
