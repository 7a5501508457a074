//! Sets of NUMA nodes, and hints about them (pkg/kubelet/cm/topologymanager, v1.36: `BitMask`,
//! `TopologyHint`): what the managers of CPUs, memory and devices tell the topology manager.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::cpuset::{CpuId, CpuSet};
use super::topology::NumaNodeId;

/// Ids from here on have no place in a [`NumaMask`]; kubelet's bit mask ends there too.
pub const MAX_NUMA_NODES: u32 = u64::BITS;

/// A NUMA node id of [`MAX_NUMA_NODES`] or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NUMA node {0} is above 63, the largest that placement can use")]
pub struct NumaNodeTooLarge(pub NumaNodeId);

/// A set of NUMA nodes with ids 0..=63. Written as the sorted list of its ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumaMask(u64);

impl NumaMask {
    pub const EMPTY: Self = Self(0);

    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub const fn bits(self) -> u64 {
        self.0
    }

    pub fn new(ids: impl IntoIterator<Item = NumaNodeId>) -> Result<Self, NumaNodeTooLarge> {
        let mut mask = Self::EMPTY;
        for id in ids {
            mask = mask.with(id)?;
        }
        Ok(mask)
    }

    pub fn with(self, id: NumaNodeId) -> Result<Self, NumaNodeTooLarge> {
        match id.0 < MAX_NUMA_NODES {
            true => Ok(Self(self.0 | 1 << id.0)),
            false => Err(NumaNodeTooLarge(id)),
        }
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of NUMA nodes.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub fn contains(self, id: NumaNodeId) -> bool {
        id.0 < MAX_NUMA_NODES && self.0 & (1 << id.0) != 0
    }

    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Nodes of `self` that are not in `other`.
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub const fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    pub const fn is_disjoint(self, other: Self) -> bool {
        self.0 & other.0 == 0
    }

    /// The ids in ascending order.
    pub fn iter(self) -> impl Iterator<Item = NumaNodeId> {
        (0..MAX_NUMA_NODES)
            .filter(move |id| self.0 & (1 << id) != 0)
            .map(NumaNodeId)
    }

    /// The ids as a set of numbers, the form that `cpuset.mems` has in common with `cpuset.cpus`.
    pub fn ids(self) -> CpuSet {
        self.iter().map(|it| CpuId(it.0)).collect()
    }

    /// The nodes of a `cpuset.mems`.
    pub fn of_ids(ids: &CpuSet) -> Result<Self, NumaNodeTooLarge> {
        Self::new(ids.iter().map(|it| NumaNodeId(it.0)))
    }

    /// Fewer nodes first; of as many, the one that is less as a number, so that low ids win.
    pub fn cmp_narrower(self, other: Self) -> Ordering {
        (self.len(), self.0).cmp(&(other.len(), other.0))
    }
}

/// As a list of ids in the kernel's format: `0-1,4`.
impl fmt::Display for NumaMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ids(), f)
    }
}

impl Serialize for NumaMask {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for NumaMask {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ids = Vec::<NumaNodeId>::deserialize(deserializer)?;
        Self::new(ids).map_err(serde::de::Error::custom)
    }
}

/// Where a resource can come from, in a provider's view; or where it shall come from, merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hint {
    /// `None`: from anywhere.
    pub numa: Option<NumaMask>,
    /// No other choice needs fewer nodes, by what the nodes have in all and not by what is free.
    pub preferred: bool,
}

impl Hint {
    /// What a container has that no merge was made for (policy `none`).
    pub const UNKNOWN: Self = Self {
        numa: None,
        preferred: false,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_nodes_are_narrower_and_low_ids_break_ties() {
        let narrower = |a, b| NumaMask(a).cmp_narrower(NumaMask(b));
        assert_eq!(narrower(0b100, 0b011), Ordering::Less);
        assert_eq!(narrower(0b011, 0b101), Ordering::Less);
        assert_eq!(narrower(0b011, 0b011), Ordering::Equal);
    }

    #[test]
    fn ids_from_64_on_have_no_place() {
        let at = |id| NumaMask::new([NumaNodeId(id)]);
        assert_eq!(at(63), Ok(NumaMask(1 << 63)));
        assert_eq!(at(64), Err(NumaNodeTooLarge(NumaNodeId(64))));
        assert!(!NumaMask(1).contains(NumaNodeId(64)));
    }

    #[test]
    fn a_mask_reads_as_the_kernel_writes_lists() {
        assert_eq!(NumaMask(0b1_0111).to_string(), "0-2,4");
    }
}
