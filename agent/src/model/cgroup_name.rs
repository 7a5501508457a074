//! Names of cgroups, independent of the driver that maps them to directories
//! (spec cgroups-qos section 1).

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    #[default]
    Cgroupfs,
    Systemd,
}

/// Components below the cgroup mount; empty is the root. Every component is valid for both
/// drivers: not empty, no `/`, no `_`, no NUL, not `.` or `..`, no `.slice` suffix.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct CgroupName(Vec<String>);
